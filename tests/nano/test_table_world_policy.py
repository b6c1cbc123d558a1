import asyncio
import json
from importlib import resources

import pytest

from midcourse.nano.package import BUILT_IN
from midcourse.nano.table_world.chat import VOCABULARY
from midcourse.nano.table_world.measure import measure
from midcourse.nano.warm_start import recipe

MEASURED = json.loads((resources.files("midcourse.nano.table_world") / "weights" / "measured.json").read_text())


def test_the_weights_are_those_of_the_recipe():
    config, _ = recipe(BUILT_IN["nano-table-world"])
    model = BUILT_IN["nano-table-world"].load()
    assert model.config.vocab_size == config.vocabulary_size == len(VOCABULARY)
    assert (model.config.num_hidden_layers, model.config.max_position_embeddings) == (config.layers, config.context)


def test_the_policy_solves_easy_requests_and_guesses_at_hard_ones():
    success = MEASURED["success"]
    assert success["easy"]["pass@1"] >= 0.95
    assert 0.05 <= success["hard"]["pass@1"] <= 0.25
    # Where to branch can matter only where rewards of one task differ.
    assert success["hard"]["mixed_groups"] >= 0.5
    # The skill is there, and the habit is against it.
    assert MEASURED["cued"]["pass@1"] >= 0.95
    assert sum(part["failed"] for part in success.values()) == 0


def test_the_policy_is_as_good_as_was_measured():
    found = asyncio.run(measure("nano-table-world", tasks=8))
    for name, part in MEASURED["success"].items():
        assert found["success"][name]["pass@1"] == pytest.approx(part["pass@1"], abs=0.2), name
    assert found["cued"]["pass@1"] >= 0.8
