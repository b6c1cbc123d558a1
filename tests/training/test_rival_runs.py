"""Runs of the rivals of RAIL that learn: what they learned is in the checkpoint, and a resumed run is the same run."""

import pytest
from tests.training.letter_run import Notes
from tests.training.test_rail_run import Interrupted, ended, run

from midcourse.methods.tampo import TAMPO, TAMPOConfig
from midcourse.methods.vip import VIP, VIPConfig

UPDATES = 3


class Interruptible:
    """Ends the run the n-th time that a task is collected, or learned from."""

    moment, left = "", 0

    def passes(self, moment):
        self.left -= moment == self.moment
        if moment == self.moment and not self.left:
            raise Interrupted(moment)

    async def collect(self, task, tools, *, seed, update):
        self.passes("collect")
        return await super().collect(task, tools, seed=seed, update=update)

    def learn(self, groups, *, update):
        self.passes("learn")
        return super().learn(groups, update=update)


class InterruptibleVIP(Interruptible, VIP):
    pass


class InterruptibleTAMPO(Interruptible, TAMPO):
    pass


METHODS = {
    "vip": (InterruptibleVIP, VIPConfig(rollouts_per_task=4, min_rollouts=3, max_rollouts=6)),
    "tampo": (InterruptibleTAMPO, TAMPOConfig(group_size=3, temperature_factors=(0.7, 1.0, 1.3))),
}


def train(folder, name, *, moment="", count=0, **settings):
    kind, config = METHODS[name]
    method = kind(config)
    method.moment, method.left = moment, count
    return run(folder, method, updates=UPDATES, **settings)


@pytest.fixture(scope="module", params=sorted(METHODS))
def whole(request, tmp_path_factory):
    """A method; what a run ends with that nothing interrupts; what it recorded."""
    found = train(tmp_path_factory.mktemp(request.param), request.param)
    return request.param, ended(*found), found[0]


def test_the_run_that_is_compared_with_learns(whole):
    name, (metrics, _, _), notes = whole
    if name == "vip":
        assert {len(group.members) for group in notes.groups[1]} == {4}
        assert len({len(group.members) for group in notes.groups[UPDATES]}) > 1
        assert {sum(len(group.members) for group in groups) for groups in notes.groups.values()} == {12}
    else:
        drawn = {group.measured["temperature_factor"] for groups in notes.groups.values() for group in groups}
        assert len(drawn) > 1
        expected = {line["intervention/temperature_factor_expected"] for line in metrics.values()}
        assert len(expected) == UPDATES


@pytest.mark.parametrize(
    ("moment", "count", "checkpoint_every"),
    [
        ("collect", 6, 1),  # within update 2, its first wave of two tasks in the journal
        ("learn", 3, 4),  # nothing but the journal stands for updates 1 to 3: all is learned from what is read back
    ],
)
def test_a_run_that_was_interrupted_and_resumed_is_the_same_run(whole, tmp_path, moment, count, checkpoint_every):
    name, expected, _ = whole
    notes = Notes()
    with pytest.raises(Interrupted):
        train(tmp_path, name, moment=moment, count=count, notes=notes, checkpoint_every=checkpoint_every)
    resumed = train(tmp_path, name, resume=True, notes=notes, checkpoint_every=checkpoint_every)
    assert ended(*resumed) == expected
