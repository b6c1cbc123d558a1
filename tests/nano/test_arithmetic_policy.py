import asyncio
import json
from importlib import resources

import pytest

from midcourse.config import build_config
from midcourse.errors import ConfigError
from midcourse.nano.arithmetic.chat import VOCABULARY
from midcourse.nano.arithmetic.measure import judge_agreement, measure
from midcourse.nano.package import BUILT_IN
from midcourse.nano.warm_start import recipe
from midcourse.training.policy import load_policy

MEASURED = json.loads((resources.files("midcourse.nano.arithmetic") / "weights" / "measured.json").read_text())


def test_the_weights_are_those_of_the_recipe():
    config, _ = recipe(BUILT_IN["nano-arithmetic"])
    model = BUILT_IN["nano-arithmetic"].load()
    assert model.config.vocab_size == config.vocabulary_size == len(VOCABULARY)
    assert (model.config.num_hidden_layers, model.config.max_position_embeddings) == (config.layers, config.context)


def test_the_policy_solves_the_easy_part_and_hardly_any_of_the_hard_part():
    assert MEASURED["pass@1"]["test/easy"] >= 0.9
    assert MEASURED["pass@1"]["test/hard"] <= 0.05
    # What the tasks lack is the habit and not the skill: behind the cue half of the hard chains are right.
    assert MEASURED["cued"] >= 0.5
    assert MEASURED["privileged"] >= 0.8
    assert MEASURED["judge"]["keeps_what_is_right"] >= 0.95
    assert MEASURED["judge"]["revises_what_is_wrong"] >= 0.75


def test_the_policy_is_as_good_as_was_measured():
    found = asyncio.run(measure("nano-arithmetic", tasks=12, documents=24))
    for name, value in MEASURED["pass@1"].items():
        assert found["pass@1"][name] == pytest.approx(value, abs=0.3), name
    assert found["privileged"] == pytest.approx(MEASURED["privileged"], abs=0.25)
    assert found["judge"]["keeps_what_is_right"] >= 0.75


def test_agreement_is_counted_over_verdicts_of_either_kind():
    keep, revise = '{"reason":"1","verdict":"keep"}<|end|>', '{"reason":"1","verdict":"revise","quote":"23"}<|end|>'
    elsewhere = revise.replace("23", "45")
    found = judge_agreement([(keep, keep), (revise, keep), (revise, revise), (elsewhere, revise), ("23", revise)])
    assert found["keeps_what_is_right"] == 0.5
    assert found["revises_what_is_wrong"] == pytest.approx(2 / 3)
    assert found["names_the_place"] == pytest.approx(1 / 3)
    assert found["unreadable"] == pytest.approx(1 / 5)


@pytest.mark.parametrize(("path", "chat"), [("nano-arithmetic", "compact"), ("nano", "digits"), ("nano", "chatml")])
def test_a_built_in_policy_speaks_its_own_chat_alone(path, chat):
    with pytest.raises(ConfigError, match=f'policy.path "{path}" speaks chat'):
        load_policy(build_config({"policy": {"path": path}}).policy.model_copy(update={"chat": chat}))
