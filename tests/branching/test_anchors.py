import math

import pytest

from midcourse.branching.anchors import anchor_entropy, normalized_entropy, top_anchors


def test_entropy_is_the_mean_over_the_logarithm_of_the_vocabulary():
    # ln 4 / ln 16 = 0.5 and 0: mean 0.25
    assert normalized_entropy([math.log(4), 0.0], 16) == pytest.approx(0.25, rel=1e-12)
    assert normalized_entropy([math.log(16)] * 3, 16) == 1.0
    assert normalized_entropy([], 16) == 0.0


def test_an_anchor_looks_at_the_turns_first_twenty_tokens():
    assert anchor_entropy([math.log(4)] * 20 + [0.0] * 100, 16) == pytest.approx(0.5)
    assert anchor_entropy([math.log(4)] * 2, 16) == pytest.approx(0.5)


def test_the_most_uncertain_anchors_come_first_and_of_equal_ones_the_earlier():
    assert top_anchors([0.1, 0.4, 0.2, 0.4, 0.3], 3) == [1, 3, 4]
    assert top_anchors([0.1], 4) == [0]


@pytest.mark.parametrize("entropies", [[float("nan")], [-0.5]])
def test_what_is_no_entropy_is_refused(entropies):
    with pytest.raises(ValueError, match="entropies must be finite"):
        normalized_entropy(entropies, 16)
    with pytest.raises(ValueError, match="vocabulary_size"):
        normalized_entropy([0.1], 1)
