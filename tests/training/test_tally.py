import math

import pytest
import torch
from training_building import INTERVENTION, POLICY, PROMPT, make_trajectory

from midcourse.training.batch import build_batch
from midcourse.training.row_tensors import importance_BT
from midcourse.training.tally import Tally
from midcourse.types import Group, Member

SOURCES = [PROMPT, POLICY, POLICY, INTERVENTION]
OLD_BT = torch.tensor([[0.0, -1.0, -2.0, -4.0]], dtype=torch.float64)
ENTROPIES_BT = torch.tensor([[9.0, 0.5, 1.5, 3.0]], dtype=torch.float64)


def rows():
    """One row, whose engine told -3 for every trained token."""
    trajectory = make_trajectory([3, 4, 5, 6], sources=SOURCES, reward=1.0, logprob=-3.0)
    group = Group(group_id="g", task_id="task", members=(Member(trajectory=trajectory),))
    return [row for group_rows in build_batch([group], [[1.0]]).groups for row in group_rows]


def test_each_writers_means_are_over_its_own_tokens():
    tally = Tally(objective_tokens=6)  # two epochs saw the three tokens
    tally.add_rollouts(rows(), OLD_BT, ENTROPIES_BT, None)
    found = tally.averages()
    assert (found["objective/tokens_policy"], found["objective/tokens_intervention"]) == (2.0, 1.0)
    assert (found["objective/entropy_policy"], found["objective/entropy_intervention"]) == (1.0, 3.0)
    assert (found["objective/logprob_policy"], found["objective/logprob_intervention"]) == (-1.5, -4.0)


def test_the_mismatch_is_that_of_the_policys_tokens():
    """The trainer's -1 and -2 against the engine's -3: 2 and 1 nats off, so that k3 is e^2 - 3 and e - 2."""
    tally = Tally()
    tally.add_rollouts(rows(), OLD_BT, ENTROPIES_BT, 3.0)
    found = tally.averages()
    assert (found["mismatch/max_abs_logprob"], found["mismatch/mean_abs_logprob"]) == (2.0, 1.5)
    assert found["mismatch/kl"] == pytest.approx((math.e**2 - 3 + math.e - 2) / 2)
    assert found["mismatch/capped_fraction"] == 0.5  # e^2 is over 3, e is not


def test_the_sums_of_two_processes_add_up_and_their_maxima_do_not():
    one, other = Tally(objective_tokens=1, loss=0.5), Tally(objective_tokens=3, loss=0.25)
    for tally, ratio, maximum in ((one, 1.0, 2.0), (other, 5.0, 7.0)):
        tally.sums["objective/ratio"] += ratio
        tally.add_maximum("objective/ratio_max", maximum)
    one.optimizer_steps = other.optimizer_steps = 2
    found = one.joined(other).averages()
    assert found["objective/ratio"] == 1.5  # (1 + 5) / (1 + 3)
    assert found["objective/loss"] == 0.375  # (0.5 + 0.25) / 2 steps
    assert found["objective/ratio_max"] == 7.0


@pytest.mark.parametrize(("cap", "expected"), [(2.0, [1.0, 2.0, 2.0, 1.0]), (0.5, [1.0, 0.5, 0.5, 1.0])])
def test_a_cap_below_one_too_leaves_all_but_the_policys_tokens_their_weight(cap, expected):
    assert importance_BT(rows(), OLD_BT, cap).tolist() == [expected]
