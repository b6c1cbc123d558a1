from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midcourse.environments.base import Tool
from midcourse.rollout.call_forms.xml_body import XmlBody
from midcourse.types import ToolCall

PROPERTIES = {
    "text": {"type": "string"},
    "maybe_text": {"type": ["string", "null"]},
    "either": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
    "count": {"type": "integer"},
    "rate": {"type": "number"},
    "flag": {"type": "boolean"},
    "places": {"type": "array"},
    "near": {"type": ["object", "null"]},
    "free": {},
}
TOOL = Tool(name="f", description="", parameters={"type": "object", "properties": PROPERTIES})


def read(key: str, value: str):
    text = f"\n<function=f>\n<parameter={key}>\n{value}\n</parameter>\n</function>\n"
    return XmlBody().read(text, [TOOL]).arguments[key]


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("text", "5", "5"),
        ("text", "True", "True"),
        ("text", '{"a": 1}', '{"a": 1}'),
        ("text", "", ""),
        ("text", " two\n\nlines ", " two\n\nlines "),
        ("maybe_text", "None", "None"),
        ("either", "5", "5"),
        ("count", "5", 5),
        ("count", "five", "five"),
        ("count", "NaN", "NaN"),
        ("rate", "1e-05", 1e-05),
        ("flag", "True", True),
        ("flag", "false", False),
        ("places", '["a", null]', ["a", None]),
        ("places", "[1, 1", "[1, 1"),
        ("near", "None", None),
        ("near", '{"a": 1, "a": 2}', '{"a": 1, "a": 2}'),
        ("free", "5", "5"),
        ("unknown", "5", "5"),
    ],
)
def test_the_schema_says_what_a_value_stands_for(key, value, expected):
    found = read(key, value)
    assert found == expected
    assert type(found) is type(expected)


def test_without_the_tool_every_value_is_text():
    assert XmlBody().read("<function=g><parameter=count>5</parameter></function>", [TOOL]).arguments == {"count": "5"}


def test_a_call_has_several_parameters_or_none():
    call = ToolCall("f", {"text": "a", "count": 3, "flag": True, "near": None, "places": ["\u2603"]})
    text = XmlBody().write(call)
    assert text == (
        "<function=f>\n<parameter=text>\na\n</parameter>\n<parameter=count>\n3\n</parameter>\n"
        "<parameter=flag>\nTrue\n</parameter>\n<parameter=near>\nNone\n</parameter>\n"
        '<parameter=places>\n["\u2603"]\n</parameter>\n</function>'
    )
    assert XmlBody().read(text, [TOOL]) == call
    assert "<parameter=flag>\ntrue\n" in XmlBody(writes_python=False).write(call)
    assert XmlBody().read("<function=f>\n</function>", [TOOL]) == ToolCall("f", {})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "must be <function=name>"),
        ('{"name": "f", "arguments": {}}', "must be <function=name>"),
        ("<function=f>", "must be <function=name>"),
        ("<function=>\n</function>", "must be <function=name>"),
        ("<function=f>\n</function> and more", "must be <function=name>"),
        ("<function=f>\nhello\n</function>", "expected <parameter=name> or </function>: got hello"),
        ("<function=f>\n<parameter=text>\na\n</function>", "'text' of 'f' is not closed"),
        ("<function=f>\n<parameter=text>a</parameter> b</function>", "'text' of 'f' is not closed"),
        ("<function=f><parameter=a>1</parameter><parameter=a>2</parameter></function>", "'a' of 'f' is given twice"),
    ],
)
def test_tags_that_are_not_whole_are_an_error_that_says_why(text, reason):
    with pytest.raises(ValueError, match=reason):
        XmlBody().read(text, [TOOL])


def test_a_closing_tag_within_a_value_is_text():
    call = ToolCall("f", {"text": "a</parameter>b\n</parameter>\n</function>\n", "count": 1})
    assert XmlBody().read(XmlBody().write(call), [TOOL]) == call


@pytest.mark.parametrize(
    "call",
    [
        ToolCall("f>g", {}),
        ToolCall("", {}),
        ToolCall("f", {"a\nb": "x"}),
        ToolCall("f", {"text": "x\n</parameter>\n<parameter=count>\n3"}),
    ],
)
def test_what_tags_cannot_hold_is_refused_and_not_changed(call):
    with pytest.raises(ValueError, match="tags cannot hold"):
        XmlBody().write(call)


def test_arguments_that_are_no_json_cannot_be_written():
    with pytest.raises(ValueError, match="no JSON"):
        XmlBody().write(ToolCall("f", {"near": {1, 2}}))
    with pytest.raises(ValueError, match="Out of range"):
        XmlBody().write(ToolCall("f", {"rate": float("nan")}))


@given(value=st.one_of(st.text(max_size=10), st.sampled_from(["</function>", "<parameter=x>", "\n\n", "</tool_call>"])))
def test_text_is_read_back_to_the_letter(value):
    call = ToolCall("f", {"text": value, "maybe_text": value})
    assert XmlBody().read(XmlBody().write(call), [TOOL]) == call


@given(text=st.lists(st.sampled_from(["<function=f>", "</function>", "<parameter=a>", "</parameter>", "x", "\n"])))
def test_reading_raises_nothing_but_a_value_error(text):
    with suppress(ValueError):
        assert XmlBody().read("".join(text), [TOOL]).name == "f"
