import pytest
import torch

from midcourse.nano.induction import wire_induction
from midcourse.nano.package import BUILT_IN
from midcourse.nano.warm_start import build_model, recipe


def config(**changes):
    return recipe(BUILT_IN["nano"], **changes)[0]


def recall(model, *, length: int, number: int = 50) -> float:
    """Return how often the likeliest next token is the one that followed the last token's first occurrence."""
    generator = torch.Generator().manual_seed(1)
    hits = 0
    for _ in range(number):
        tokens = torch.randperm(300, generator=generator)[:length]
        asked = int(torch.randint(0, length - 1, (1,), generator=generator))
        with torch.no_grad():
            logits = model(torch.cat((tokens, tokens[asked : asked + 1]))[None]).logits[0, -1]
        hits += int(logits.argmax() == tokens[asked + 1])
    return hits / number


@pytest.mark.parametrize("length", [10, 120])
def test_an_untrained_model_recalls_what_followed_a_word(length):
    assert recall(build_model(config()).eval(), length=length) > 0.9


def test_without_the_second_head_nothing_is_recalled():
    model = build_model(config()).eval()
    with torch.no_grad():
        model.model.layers[1].self_attn.o_proj.weight[:, :32] = 0
    assert recall(model, length=10) < 0.2


def test_the_same_seed_wires_the_same_weights():
    first, second, other = (build_model(config(seed=seed)).state_dict() for seed in (5, 5, 6))
    assert all(value.equal(second[name]) for name, value in first.items())
    assert not first["model.embed_tokens.weight"].equal(other["model.embed_tokens.weight"])


@pytest.mark.parametrize("settings", [{"layers": 1}, {"hidden_size": 32, "head_size": 16}])
def test_a_model_without_room_is_refused(settings):
    with pytest.raises(ValueError, match="needs two layers"):
        build_model(config(**settings))


def test_tied_embeddings_are_refused():
    model = build_model(config())
    model.config.tie_word_embeddings = True
    with pytest.raises(ValueError, match="tied=True"):
        wire_induction(model, generator=torch.Generator())
