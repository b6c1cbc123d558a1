import asyncio
import json
from importlib import resources

import pytest

from midcourse.nano.navigation.chat import CompactChatFormat
from midcourse.nano.navigation.demonstrations import DemonstrationConfig, Demonstrator
from midcourse.nano.navigation.measure import measure
from midcourse.nano.navigation.tokenizer import VOCABULARY, NanoTokenizer
from midcourse.nano.package import BUILT_IN
from midcourse.nano.warm_start import WarmStartConfig, schedule, warm_start

MEASURED = json.loads((resources.files("midcourse.nano.navigation") / "weights" / "measured.json").read_text())


def train_small(seed: int):
    """Return a model a fraction of the shipped one's size, after a few steps, and its reported losses."""
    losses = []
    config = WarmStartConfig(
        seed=seed,
        vocabulary_size=len(VOCABULARY),
        hidden_size=64,
        head_size=16,
        intermediate_size=64,
        layers=2,
        steps=100,
        batch_tokens=384,
    )
    source = Demonstrator(CompactChatFormat(NanoTokenizer()), DemonstrationConfig(atlases=4), seed=seed)
    model = warm_start(config, source, report=lambda step, loss, seconds: losses.append(loss))
    return model, losses


def test_a_smaller_warm_start_learns_and_is_the_same_twice():
    model, losses = train_small(seed=3)
    again, _ = train_small(seed=3)
    assert losses[-1] < losses[0] - 0.5
    for name, value in model.state_dict().items():
        assert value.equal(again.state_dict()[name]), name


def test_the_learning_rate_rises_and_falls_to_a_tenth():
    assert schedule(0.0) < 0.1
    assert schedule(0.05) == pytest.approx(1.0)
    assert schedule(1.0) == pytest.approx(0.1)


def test_the_shipped_policy_has_between_one_and_three_million_parameters():
    model = BUILT_IN["nano"].load()
    assert 1e6 <= sum(parameter.numel() for parameter in model.parameters()) <= 3e6


def test_the_shipped_policy_solves_the_easy_part_and_hardly_any_of_the_hard_part():
    assert MEASURED["pass@1"]["test/easy"] >= 0.95
    assert MEASURED["pass@1"]["ood/easy"] >= 0.95
    assert 0 < MEASURED["pass@1"]["test/hard"] <= 0.05
    assert min(scores["agreement"] for scores in MEASURED["roles"].values()) >= 0.9


def test_the_shipped_policy_is_as_good_as_was_measured():
    found = asyncio.run(measure("nano", tasks=24, role_documents=24))
    for name, value in MEASURED["pass@1"].items():
        # A few tasks of 4 attempts against 150: wide enough for chance, too narrow for broken weights.
        assert found["pass@1"][name] == pytest.approx(value, abs=0.1), name
    for role, scores in MEASURED["roles"].items():
        assert found["roles"][role]["agreement"] == pytest.approx(scores["agreement"], abs=0.2), role
