"""Order levels, by hand."""

import pytest

from midcourse.environments.navigation.matching import route_matches
from midcourse.environments.navigation.places import parse_point

A, B, C, D = (31, 7), (44, 12), (2, 88), (9, 9)


@pytest.mark.parametrize(
    ("route", "levels"),
    [
        ([A, B, C, D], {0, 1, 2, 3, 4}),
        ([A, C, B, D], {0, 1, 2, 3}),
        ([A, D, C, B], {0, 1}),
        ([C, B, A, D], {0, 2}),
        ([D, C, B, A], {0}),
        ([A, B, C], set()),  # a stop is missing
        ([A, B, C, C, D], set()),  # a stop stands twice
        ([A, B, B, D], set()),  # a double in place of a stop
        ([A, B, (5, 5), C, D], set()),  # a stop too many
        ([A, B, (88, 2), D], set()),  # longitude and latitude swapped
        ([], set()),
    ],
)
def test_a_route_earns_reward_exactly_at_these_order_levels(route, levels):
    assert {level for level in range(5) if route_matches(route, [A, B, C, D], order_level=level)} == levels


def test_an_unknown_order_level_is_an_error():
    with pytest.raises(ValueError, match="order level"):
        route_matches([A], [A], order_level=5)


def test_coordinates_compare_as_numbers_not_as_text():
    assert parse_point("120.5, 31.20", profile="full") == parse_point("120.500000,31.2", profile="full")
    assert parse_point("120.500001,31.2", profile="full") != parse_point("120.5,31.2", profile="full")


@pytest.mark.parametrize("text", ["", "12", "a,b", "1,2,3", "181,0", "31.2,120.5", "nan,1", "1e3,2", "\u0661,\u0662"])
def test_bad_coordinates_are_refused(text):
    with pytest.raises(ValueError, match="must"):
        parse_point(text, profile="full")
