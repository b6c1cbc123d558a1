import pytest
from pydantic import ValidationError

from midcourse.branching.promotion import Promotion, PromotionConfig, agrees, promotion_bar
from midcourse.errors import CheckpointError

DYNAMIC = PromotionConfig(rule="dynamic")


def observe(promotion, agreements):
    for agreement in agreements:
        promotion.observe(0.1, 0.1 if agreement else -0.1)


def test_the_bar_is_two_deviations_over_chance():
    assert promotion_bar(60) == pytest.approx(0.6291, abs=5e-5)  # 0.5 + 2 * sqrt(1 / 240)
    assert promotion_bar(100) == pytest.approx(0.6)


def test_zero_is_not_positive():
    assert agrees(0.1, 0.2)
    assert agrees(0.0, -0.1)
    assert agrees(-0.2, 0.0)
    assert not agrees(0.0, 0.1)


@pytest.mark.parametrize(
    ("fraction", "total", "first_live"), [(0.2, 100, 21), (0.0, 10, 1), (0.07, 100, 8), (0.2, 2, 2)]
)
def test_the_fixed_rule_promotes_after_its_part_of_the_updates(fraction, total, first_live):
    promotion = Promotion(PromotionConfig(shadow_fraction=fraction), total_updates=total)
    live = [update for update in range(1, total + 1) if promotion.begin_update(update)]
    assert live == list(range(first_live, total + 1))
    assert promotion.promoted_at == first_live
    assert promotion.reason == "fixed"


def test_the_fixed_rule_of_the_whole_run_never_promotes():
    promotion = Promotion(PromotionConfig(shadow_fraction=1.0), total_updates=5)
    assert not any(promotion.begin_update(update) for update in range(1, 6))
    assert promotion.promoted_at is None


def test_skill_promotes_after_sixty_anchors_over_the_bar_counted_from_the_fiftieth():
    promotion = Promotion(DYNAMIC, total_updates=1000)
    observe(promotion, [True] * 108)
    assert not promotion.begin_update(7)
    observe(promotion, [True])
    assert promotion.begin_update(8)
    assert (promotion.promoted_at, promotion.reason) == (8, "skill")
    observe(promotion, [False] * 500)
    assert promotion.begin_update(9)


@pytest.mark.parametrize("window", [1, 4])
def test_a_window_whose_bar_nothing_can_pass_is_refused_under_the_dynamic_rule_alone(window):
    with pytest.raises(ValidationError, match=rf"window = {window}: no agreement .* expected at least 5"):
        PromotionConfig(rule="dynamic", window=window)
    assert PromotionConfig(rule="dynamic", window=5).window == 5
    assert PromotionConfig(window=window).window == window


def test_one_window_at_the_bar_starts_the_row_anew():
    # Windows of 4, bar 0.5 + 2 * sqrt(0.25 / 4) = 1: never strictly over it.
    never = Promotion(DYNAMIC.model_copy(update={"window": 4, "patience": 2, "min_anchors": 1}), total_updates=10)
    observe(never, [True] * 100)
    assert not never.begin_update(1)
    # Windows of 16, bar 0.75: 13 of 16 is over it, 12 of 16 is not.
    config = DYNAMIC.model_copy(update={"window": 16, "patience": 4, "min_anchors": 16})
    promotion = Promotion(config, total_updates=10)
    observe(promotion, [False] * 3 + [True] * 13)  # 13 of 16
    observe(promotion, [False, True])  # 13, then 14 of 16: disagreements leave the window
    assert promotion.rolling_agreement == 14 / 16
    assert not promotion.begin_update(1)  # the row is 3
    observe(promotion, [False])  # the last early disagreement leaves: 14 of 16, the row is 4
    assert promotion.begin_update(1)


def test_a_row_that_breaks_begins_at_zero():
    config = DYNAMIC.model_copy(update={"window": 16, "patience": 3, "min_anchors": 16})
    promotion = Promotion(config, total_updates=10)
    observe(promotion, [True] * 17)  # two over the bar
    assert not promotion.begin_update(1)
    observe(promotion, [False])  # 15 of 16: three
    assert promotion.begin_update(1)
    broken = Promotion(config, total_updates=10)
    observe(broken, [True] * 13 + [False] * 3)  # 13 of 16: one
    observe(broken, [False])  # 12 of 16: none
    observe(broken, [True] * 12)  # agreements leave: 12 of 16, none
    observe(broken, [True, True])  # disagreements leave: 13 and 14 of 16, two
    assert not broken.begin_update(1)
    observe(broken, [True])
    assert broken.begin_update(1)


def test_the_cap_promotes_whoever_shows_no_skill():
    promotion = Promotion(DYNAMIC, total_updates=1000)
    observe(promotion, [True, False] * 300)
    assert not promotion.begin_update(200)
    assert promotion.begin_update(201)
    assert promotion.reason == "cap"


def test_a_resumed_promotion_goes_on_where_it_was():
    promotion = Promotion(DYNAMIC, total_updates=1000)
    observe(promotion, [True] * 100)
    resumed = Promotion(DYNAMIC, total_updates=1000)
    resumed.load_state_dict(promotion.state_dict())
    for one in (promotion, resumed):
        observe(one, [True] * 9)
        assert one.begin_update(12)
        assert one.rolling_agreement == 1.0
    again = Promotion(DYNAMIC, total_updates=1000)
    again.load_state_dict(resumed.state_dict())
    assert (again.promoted_at, again.reason) == (12, "skill")


def test_a_state_of_another_form_is_refused():
    with pytest.raises(CheckpointError, match="another form"):
        Promotion(DYNAMIC, total_updates=10).load_state_dict({})


def test_a_run_that_is_made_longer_keeps_the_shadow_phase_that_it_was_begun_with():
    config = PromotionConfig(rule="fixed", shadow_fraction=0.2)
    begun = Promotion(config, total_updates=20)
    assert not begun.begin_update(4)
    longer = Promotion(config, total_updates=100)
    longer.load_state_dict(begun.state_dict())
    assert longer.begin_update(5)
