"""Values between the boxes keep their types, and comparing them runs nothing of the answer's."""

import json
import math
from collections import Counter, OrderedDict, namedtuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from midcourse.environments.code.guest import CannotEncode, both_found, decode, encode, same, same_members

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.complex_numbers(allow_nan=False)
)
HASHABLE = st.recursive(SCALARS, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3), max_leaves=5)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.sets(HASHABLE, max_size=3)
        | st.dictionaries(HASHABLE, inner, max_size=3)
    ),
    max_leaves=12,
)


def typed(value):
    """Return the value with the type of every part."""
    if isinstance(value, dict):
        return [(typed(key), typed(item)) for key, item in value.items()]
    if isinstance(value, (set, frozenset)):
        return type(value).__name__, sorted(map(repr, map(typed, value)))
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [typed(item) for item in value]
    return type(value).__name__, repr(value)


@settings(deadline=None, derandomize=True, max_examples=200)
@given(VALUES)
def test_a_value_comes_back_as_it_was(value):
    assert typed(decode(json.loads(json.dumps(encode(value))))) == typed(value)


def test_numbers_beyond_json_come_back_exactly():
    for number in (10**6000, -(10**6000), 2**63, -(2**63) - 1, math.inf, -math.inf):
        assert decode(json.loads(json.dumps(encode([number, (number,)])))) == [number, (number,)]
    assert math.isnan(decode(json.loads(json.dumps(encode(math.nan)))))


def test_types_that_are_built_in_are_values_too():
    assert decode(json.loads(json.dumps(encode([int, (str, None)])))) == [int, (str, None)]
    with pytest.raises(CannotEncode):
        encode(type("int", (), {}))


def test_subclasses_become_what_they_are_made_of():
    Point = namedtuple("Point", "x y")
    value = [Point(1, 2), Counter("aab"), OrderedDict(a=1), type("Text", (str,), {})("x")]
    assert decode(encode(value)) == [(1, 2), {"a": 2, "b": 1}, {"a": 1}, "x"]
    assert [type(item) for item in decode(encode(value))] == [tuple, dict, dict, str]


def test_objects_are_kept_by_whoever_can_and_refused_otherwise():
    kept = []

    def keep(value):
        kept.append(value)
        return len(kept) - 1

    thing = object()
    assert encode([1, thing], keep) == [1, {"object": 0}]
    assert decode([1, {"object": 0}], kept.__getitem__) == [1, thing]
    with pytest.raises(CannotEncode, match="a object has no plain form"):
        encode([thing])


@pytest.mark.parametrize(
    "node",
    [
        {},
        {"a": 1, "b": 2},
        {"code": "x"},
        {"object": 0},
        {"set": [[]]},
        {"dict": [[1]]},
        {"int": 5},
        {"tuple": 3},
        {"type": "eval"},
    ],
)
def test_what_is_no_encoding_is_an_error_and_nothing_else(node):
    with pytest.raises((ValueError, TypeError, KeyError)):
        decode(node)


@pytest.mark.parametrize(
    ("value", "expected", "tolerance", "verdict"),
    [
        (1, 1.0, 0.0, True),
        (True, 1, 0.0, True),
        ([1], (1,), 0.0, False),
        ((1, [2.0]), (1, [2.0]), 0.0, True),
        (1.0000005, 1.0, 1e-6, True),
        (1.000002, 1.0, 1e-6, False),
        (1.0000005, 1.0, 0.0, False),
        (10.0**9 + 50, 10.0**9, 1e-6, True),  # the relative tolerance of 1e-7 allows 100
        (10.0**9 + 150, 10.0**9, 1e-6, False),
        ([1, 2.0000005], [1, 2.0], 1e-6, True),
        ({"a": 1.0000005}, {"a": 1.0}, 1e-6, True),
        ({"a": 1.0, "b": 2}, {"a": 1.0}, 1e-6, False),
        (math.nan, math.nan, 0.0, True),
        ([math.nan], [0.0], 1e-6, False),
        (math.inf, math.inf, 1e-6, True),
        (1e300, math.inf, 1e-6, False),
        (3, "3", 0.0, False),
        (None, 0, 0.0, False),
        ({1, 2}, frozenset({2, 1}), 0.0, True),
    ],
)
def test_values_are_the_same_by_equality_and_floats_within_the_tolerance(value, expected, tolerance, verdict):
    assert same(value, expected, tolerance) is verdict


def test_members_count_in_any_order_and_kind_but_all_of_them():
    assert same_members([3, 1, 1], (1, 3))
    assert same_members({1, 3}, [3, 1])
    assert not same_members([1], (1, 3))
    assert not same_members([1, 3, 4], (1, 3))
    assert not same_members(None, ())
    assert same_members([], ())


def test_found_means_not_none_unless_it_is_said_outright():
    assert both_found("match", "another match")
    assert both_found(None, None)
    assert both_found(True, "match")
    assert not both_found(False, "match")
    assert not both_found(None, "match")
