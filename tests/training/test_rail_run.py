"""Runs of RAIL on a tiny model: what it learned is in the checkpoint, and a resumed run is the same run."""

import time
from dataclasses import replace

import numpy
import pytest
from tests.interventions.scripted_world import LetterChat
from tests.training.letter_run import EvenEpisode, EvenWorld, Notes, letter_policy, train_letters

from midcourse.branching.actions import ActionSpaceConfig
from midcourse.branching.controller import ControllerConfig
from midcourse.branching.exploration import ExplorationConfig
from midcourse.branching.promotion import PromotionConfig
from midcourse.errors import CheckpointError
from midcourse.methods.rail import RAIL, RAILConfig

UPDATES = 4


class ShortTurns(LetterChat):
    """One token in four ends a turn, so that rollouts of a random model have several."""

    stop_ids = tuple(range(0, 128, 4))


class HurriedEpisode(EvenEpisode):
    """Takes its time, differently each time."""

    def act(self, turn):
        time.sleep(0.002 * (time.monotonic_ns() % 3))
        return super().act(turn)


class HurriedWorld(EvenWorld):
    def __init__(self):
        super().__init__(turns=3)

    def start(self, task, *, seed):
        return HurriedEpisode(self.max_turns)


CONFIG = RAILConfig(
    initial_rollouts=2,
    rollout_budget=7,
    shadow_anchors=2,
    space=ActionSpaceConfig(branch_counts=(1, 2), regimes=("exploit", "aggressive")),
    controller=ControllerConfig(gate=-1.0, exploration=ExplorationConfig(initial_rate=0.3)),
    promotion=PromotionConfig(shadow_fraction=0.5),
)


class Interrupted(RuntimeError):
    """In place of a kill: nothing but files is left to the run that goes on."""


class InterruptedRAIL(RAIL):
    """Ends the run the n-th time that a task is collected, or learned from, or never."""

    def __init__(self, config, *, moment="", count=0):
        super().__init__(config)
        self.moment, self.left = moment, count

    def _pass(self, moment):
        self.left -= moment == self.moment
        if moment == self.moment and not self.left:
            raise Interrupted(moment)

    async def collect(self, task, tools, *, seed, update):
        self._pass("collect")
        return await super().collect(task, tools, seed=seed, update=update)

    def learn(self, groups, *, update):
        self._pass("learn")
        return super().learn(groups, update=update)


class Interrupting(Notes):
    """Ends the run when the metrics of an update are to be written."""

    def __init__(self, update):
        super().__init__()
        self.update = update

    def write_metrics(self, update, metrics):
        if update == self.update:
            raise Interrupted(update)
        super().write_metrics(update, metrics)


def run(folder, method=None, *, resume=False, notes=None, config=CONFIG, updates=UPDATES, **settings):
    """Train with a policy and a method that know nothing of an earlier run."""
    method = method or config.build()
    policy = replace(letter_policy(), chat=ShortTurns())
    notes, policy = train_letters(
        folder,
        method,
        updates=updates,
        resume=resume,
        policy=policy,
        environment=HurriedWorld(),
        notes=notes,
        **{"keep_checkpoints": UPDATES, **settings},
    )
    return notes, policy, method


def ended(notes, policy, method):
    """What a run ends with, bit for bit."""
    return (
        notes.metrics,
        {name: parameter.detach().numpy().tobytes() for name, parameter in policy.model.named_parameters()},
        {name: (array.dtype, array.shape, array.tobytes()) for name, array in method.state_dict().items()},
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """What a run ends with that nothing interrupts; its folder; what it recorded."""
    folder = tmp_path_factory.mktemp("whole")
    found = run(folder)
    return ended(*found), folder, found[0]


def test_the_run_that_is_compared_with_branches_by_rule_and_by_controller_and_learns(whole):
    (metrics, _, state), _, notes = whole
    assert [metrics[update]["intervention/controller/is_live"] for update in range(1, 5)] == [0, 0, 1, 1]
    assert all(metrics[update]["intervention/branches"] > 0 for update in metrics)
    assert metrics[4]["intervention/controller/decisions"] > 3
    records = [record for groups in notes.groups.values() for group in groups for record in group.branches]
    assert {record.rule for record in records} == {"warm_up", "controller", "exploration"}
    assert {record.temperature for record in records} == {0.7, 1.3}
    assert any(record.turn > 0 for record in records)
    assert any(record.predicted for record in records if record.rule != "warm_up")
    assert numpy.frombuffer(state["controller/parameters"][2]).any()
    members = [member.trajectory for groups in notes.groups.values() for group in groups for member in group.members]
    assert all(trajectory.failure is None for trajectory in members)
    assert {len(group.members) for groups in notes.groups.values() for group in groups} > {7}
    losses = [line["objective/optimizer_steps"] for line in metrics.values()]
    assert all(losses)


@pytest.mark.parametrize(
    ("moment", "count", "checkpoint_every"),
    [
        ("collect", 12, 3),  # within update 4, behind the checkpoint of 3; its first wave is in the journal
        ("collect", 9, 3),  # within update 3: nothing but the journal stands for updates 1 and 2
        ("learn", 3, 1),  # the policy has moved, the controller has not
    ],
)
def test_a_run_that_was_interrupted_and_resumed_is_the_same_run(whole, tmp_path, moment, count, checkpoint_every):
    notes = Notes()
    method = InterruptedRAIL(CONFIG, moment=moment, count=count)
    with pytest.raises(Interrupted):
        run(tmp_path, method, notes=notes, checkpoint_every=checkpoint_every)
    assert ended(*run(tmp_path, resume=True, notes=notes, checkpoint_every=checkpoint_every)) == whole[0]


def test_a_run_that_was_interrupted_between_learning_and_writing_is_the_same_run(whole, tmp_path):
    notes = Interrupting(update=2)
    with pytest.raises(Interrupted):
        run(tmp_path, notes=notes)
    notes.update = 0
    assert ended(*run(tmp_path, resume=True, notes=notes)) == whole[0]


def test_a_checkpoint_of_another_action_space_is_refused(tmp_path):
    run(tmp_path, updates=1)
    other = CONFIG.model_copy(update={"space": ActionSpaceConfig(branch_counts=(1, 2), regimes=("mild", "aggressive"))})
    with pytest.raises(CheckpointError, match=r"another action space: \[\"1 exploit\", .*\"2 aggressive\"\]"):
        run(tmp_path, resume=True, config=other, updates=2)


def test_a_checkpoint_without_what_the_method_learned_is_refused(tmp_path):
    blind = ControllerConfig(without_features=("hidden",))
    run(tmp_path, config=CONFIG.model_copy(update={"controller": blind}), updates=1)
    with pytest.raises(CheckpointError, match=r"branching controller's parameters must be float64 .*: got float64"):
        run(tmp_path, resume=True, updates=2)


def test_what_was_learned_is_a_file_of_the_checkpoint_and_damage_to_it_is_found(whole, tmp_path):
    notes = Notes()
    with pytest.raises(Interrupted):
        run(tmp_path, InterruptedRAIL(CONFIG, moment="collect", count=10), notes=notes)  # the first of update 4
    file = tmp_path / "checkpoints" / "step_3" / "method.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.warns(UserWarning, match=r"step_3/method\.safetensors is damaged.*falling back"):
        resumed = run(tmp_path, resume=True, notes=notes)
    assert ended(*resumed) == whole[0]


def test_micro_batches_are_one_batch_where_groups_differ_in_size(tmp_path):
    # Updates 1 and 2 are of the first weights but for rounding: Adam would make much of it, so the rate is nothing.
    one, many = (
        run(tmp_path / str(tokens), updates=2, micro_batch_tokens=tokens, learning_rate=1e-12)[0]
        for tokens in (100_000, 60)
    )
    written = [
        [
            [member.trajectory.token_ids for member in group.members]
            for groups in notes.groups.values()
            for group in groups
        ]
        for notes in (one, many)
    ]
    assert written[0] == written[1]
    assert len(set(map(len, written[0]))) > 1
    for update in (1, 2):
        assert many.metrics[update]["objective/rows"] == one.metrics[update]["objective/rows"]
        for name in ("grad_norm", "logprob_policy", "entropy_policy"):
            expected = one.metrics[update][f"objective/{name}"]
            assert many.metrics[update][f"objective/{name}"] == pytest.approx(expected, rel=1e-4)
