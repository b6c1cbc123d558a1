import pytest

from midcourse.objectives.reduction import AGGREGATIONS, row_coefficients


def test_grpo_divides_by_groups_rows_and_tokens_of_the_row():
    found = row_coefficients([[2, 4], [5, 1]], aggregation="seq-mean-token-mean")
    assert found == [[1 / 8, 1 / 16], [1 / 20, 1 / 4]]


def test_dapo_divides_by_all_tokens():
    assert row_coefficients([[2, 4], [3, 1]], aggregation="token-mean") == [[0.1, 0.1], [0.1, 0.1]]


def test_dr_grpo_divides_by_a_constant_length():
    found = row_coefficients([[2, 4], [5, 1]], aggregation="seq-sum-norm", normalization_tokens=10)
    assert found == [[1 / 40, 1 / 40], [1 / 40, 1 / 40]]


def test_groups_of_different_size_weigh_the_same():
    small, large = row_coefficients([[3], [3, 3, 3]], aggregation="seq-mean-token-mean")
    assert 3 * small[0] == pytest.approx(0.5)
    assert sum(3 * coefficient for coefficient in large) == pytest.approx(0.5)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_a_row_without_tokens_counts_as_a_row_and_divides_by_nothing(aggregation: str):
    constant = 7 if aggregation == "seq-sum-norm" else None
    found = row_coefficients([[0, 2]], aggregation=aggregation, normalization_tokens=constant)
    expected = {
        "seq-mean-token-mean": 1 / 4,
        "token-mean": 1 / 2,
        "seq-sum-norm": 1 / 14,
        "seq-mean-token-sum": 1 / 2,
    }
    assert found[0][1] == expected[aggregation]


@pytest.mark.parametrize(
    ("aggregation", "constant", "message"),
    [("mean", None, "unknown"), ("seq-sum-norm", None, "needs"), ("token-mean", 5, "needs"), ("seq-sum-norm", 0, "1")],
)
def test_what_does_not_fit_is_refused(aggregation: str, constant: int | None, message: str):
    with pytest.raises(ValueError, match=message):
        row_coefficients([[1]], aggregation=aggregation, normalization_tokens=constant)
