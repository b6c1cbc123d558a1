import pytest

from midcourse.evaluation.reviews import Trend, review_sentences, summarize_reviews
from midcourse.types import ReviewOutcome

FIRST = {
    "update": 1,
    "reward/success_fraction_before": 0.25,
    "intervention/success_semi": 0.5,
    "intervention/num_semi_on_policy": 4.0,
    "intervention/num_revised": 2.0,
    "intervention/num_holding_answer": 1.0,
    "intervention/review/kept": 5.0,
    "intervention/review/revised": 2.0,
    "intervention/review/not_found": 1.0,
    "intervention/token_fraction_semi": 0.1,
    "intervention/correction_tokens": 3.0,
    "intervention/rejected_tokens": 10.0,
    "intervention/first_error_position": 20.0,
    "intervention/first_error_fraction": 0.5,
    "intervention/policy_logprob": -1.0,
    "intervention/judge_logprob": -0.5,
    "rollout/tokens/policy": 60.0,
    "rollout/tokens/intervened_policy": 40.0,
    "rollout/tokens/judge": 30.0,
    "rollout/prompt_tokens/judge": 250.0,
    "rollout/tokens/intervention": 6.0,
    "rollout/prompt_tokens/intervention": 150.0,
}
SECOND = {
    **FIRST,
    "update": 2,
    "reward/success_fraction_before": 0.5,
    "intervention/success_semi": 0.75,
    "intervention/num_revised": 1.0,
    "intervention/num_holding_answer": 0.0,
    "intervention/review/kept": 7.0,
    "intervention/review/revised": 1.0,
    "intervention/review/not_found": 0.0,
    "intervention/token_fraction_semi": 0.04,
    "intervention/correction_tokens": 6.0,
    "intervention/rejected_tokens": 4.0,
    "intervention/first_error_position": 50.0,
    "intervention/first_error_fraction": 0.2,
    "intervention/policy_logprob": -0.6,
    "intervention/judge_logprob": -0.2,
}
AFTERWARDS = {"update": 3, "reward/success_fraction_before": 0.75, "rollout/tokens/policy": 1000.0}
LINES = [FIRST, SECOND, AFTERWARDS]


def said(lines):
    return " ".join(review_sentences(summarize_reviews(lines)))


def test_means_are_over_what_each_updates_mean_is_over():
    found = summarize_reviews(LINES)
    assert found.outcomes["kept"] == 12
    assert (found.correction_tokens, found.rejected_tokens) == (4.0, 8.0)  # (2 x 3 + 6) / 3, (2 x 10 + 4) / 3
    assert found.first_error_position == 30.0  # (2 x 20 + 50) / 3
    assert found.first_error_fraction == pytest.approx(0.4)
    assert found.token_fraction == pytest.approx(0.07)
    assert found.judge_logprob == pytest.approx(-0.4)


def test_the_judges_tokens_are_counted_against_those_of_updates_with_reviews():
    found = summarize_reviews(LINES)
    assert (found.judge_read, found.judge_wrote) == (4.0, 0.36)


def test_the_policy_alone_is_followed_past_the_last_review():
    found = summarize_reviews(LINES)
    assert found.success_alone == Trend(start=0.25, end=0.75, window=1, is_single=False)
    assert found.success_reviewed == Trend(start=0.5, end=0.75, window=1, is_single=False)


def test_start_and_end_are_means_over_five_updates_at_most_and_share_none():
    lines = [{**FIRST, "update": update, "intervention/success_semi": update / 16} for update in range(1, 13)]
    found = summarize_reviews(lines).success_reviewed
    assert (found.start, found.end, found.window) == (3 / 16, 10 / 16, 5)
    assert summarize_reviews(lines[:7]).success_reviewed.window == 3


def test_without_rollouts_under_review_there_is_nothing_to_say():
    assert summarize_reviews([AFTERWARDS]) is None
    assert summarize_reviews([{**AFTERWARDS, "intervention/num_semi_on_policy": 0.0}]) is None


def test_the_sentences_hold_the_numbers():
    text = said(LINES)
    assert (
        "The judge reviewed 16 chunks of 8 rollouts: kept 12 (75.0 %), revised 3 (18.8 %), not found 1 (6.2 %)." in text
    )
    assert "It wrote 7.0 % of the tokens that train in those rollouts." in text
    assert "A correction is 4.0 tokens long on average, in place of 8.0 rejected ones." in text
    assert "3 of the rollouts were corrected; their first error stood 30.0 tokens into the response" in text
    assert "(40.0 % of its length)" in text
    assert "Corrections that hold a private value of the evidence: 1." in text
    assert "policy wrote alone: 25.0 % in the first update, 75.0 % in the last." in text
    assert "under review: 50.0 % in the first update with reviews, 75.0 % in the last." in text
    assert "in nats: -1.00 at the start, -0.60 at the end; the judge's own: -0.40." in text
    assert "For each token of the policy the judge read 4.00 and wrote 0.36." in text


@pytest.mark.parametrize("outcome", list(ReviewOutcome))
def test_every_outcome_has_its_name_in_the_sentences(outcome):
    line = {key: value for key, value in FIRST.items() if not key.startswith("intervention/review/")}
    names = {"judge_failed": "judge failed", "no_correction": "no correction", "not_found": "not found"}
    text = said([{**line, f"intervention/review/{outcome.value}": 3.0}])
    assert f"The judge reviewed 3 chunks of 4 rollouts: {names.get(outcome.value, outcome.value)} 3 (100.0 %)." in text


def test_one_update_is_no_trend():
    text = said([FIRST])
    assert "policy wrote alone: 25.0 %. " in text
    assert "in nats: -1.00; the judge's own: -0.50." in text


def test_what_did_not_happen_is_not_mentioned():
    kept = {
        "update": 1,
        "intervention/num_semi_on_policy": 4.0,
        "intervention/review/kept": 9.0,
        "intervention/num_revised": 0.0,
        "intervention/token_fraction_semi": 0.0,
        "time/rollout/policy": 3.0,
    }
    assert said([kept]) == (
        "The judge reviewed 9 chunks of 4 rollouts: kept 9 (100.0 %). "
        "It wrote 0.0 % of the tokens that train in those rollouts."
    )


def test_a_judge_on_a_server_tells_no_tokens():
    line = {key: value for key, value in FIRST.items() if not key.endswith(("/judge", "/intervention"))}
    assert "is not known: a server does not tell" in said([{**line, "time/rollout/judge": 2.0}])
    assert "server" not in said([line])  # a script
