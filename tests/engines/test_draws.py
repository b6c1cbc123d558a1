import torch

from midcourse.engines.draws import draw, entropy, truncate, uniforms


def test_a_longer_request_draws_the_same_first_numbers():
    assert torch.equal(uniforms(7, 100)[:3], uniforms(7, 3))
    assert not torch.equal(uniforms(8, 3), uniforms(7, 3))


def test_inverse_cdf_takes_the_token_where_the_sum_passes_the_number():
    probabilities = torch.tensor([[0.2, 0.0, 0.5, 0.3]], dtype=torch.float64).repeat(5, 1)
    numbers = torch.tensor([0.0, 0.19, 0.2, 0.69, 0.71], dtype=torch.float64)
    assert draw(probabilities, numbers).tolist() == [0, 0, 2, 2, 3]


def test_a_token_of_probability_zero_is_never_drawn():
    probabilities = torch.tensor([[0.0, 1.0, 0.0]], dtype=torch.float64).repeat(2, 1)
    numbers = torch.tensor([0.0, 1 - 2.0**-53], dtype=torch.float64)
    assert draw(probabilities, numbers).tolist() == [1, 1]


def test_the_largest_number_draws_the_last_token_that_has_any_probability():
    torch.manual_seed(0)
    probabilities = torch.rand(500, 7)
    probabilities[:, 5:] = 0.0
    numbers = torch.full((500,), 1 - 2.0**-53, dtype=torch.float64)
    assert set(draw(probabilities, numbers).tolist()) == {4}


def test_a_row_that_is_not_a_number_draws_an_id_that_exists():
    numbers = torch.tensor([0.0, 0.5], dtype=torch.float64)
    assert max(draw(torch.full((2, 3), float("nan")), numbers)) < 3


def test_truncation_keeps_the_token_that_crosses_the_mass_and_the_k_most_likely():
    row = torch.tensor([0.1, 0.4, 0.2, 0.3], dtype=torch.float64)
    kept = truncate(row.repeat(4, 1), torch.tensor([0.5, 1.0, 1.0, 0.01]), torch.tensor([4, 1, 4, 4]))
    expected = [[0, 0.4, 0, 0.3], [0, 0.4, 0, 0], [0.1, 0.4, 0.2, 0.3], [0, 0.4, 0, 0]]
    assert torch.allclose(kept, torch.tensor(expected, dtype=torch.float64))


def test_entropy_of_a_certain_row_is_zero_and_of_a_fair_coin_log_two():
    logprobs = torch.tensor([[0.0, float("-inf")], [0.5, 0.5]])
    logprobs[1] = logprobs[1].log()
    assert torch.allclose(entropy(logprobs, logprobs.exp()), torch.tensor([0.0, 0.6931472]))
