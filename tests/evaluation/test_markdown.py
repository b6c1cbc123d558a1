from midcourse.evaluation.markdown import escape_text, markdown_table, visible


def test_control_characters_and_markup_cannot_pass():
    assert escape_text("a\x1b[2J\n<b>`x`") == "a&#92;x1b&#91;2J&#92;n&lt;b&gt;&#96;x&#96;"


def test_a_bar_in_a_cell_does_not_break_the_table():
    assert markdown_table(("a",), [["x|y"]]).splitlines()[-1] == "| x&#124;y |"


def test_every_cell_of_a_table_is_escaped_for_where_it_is_read():
    assert markdown_table(("<b>", "n"), [["`x`\n", "max_tokens"]]).splitlines() == [
        "| &lt;b&gt; | n |",
        "| --- | --- |",
        "| &#96;x&#96;&#92;n | max_tokens |",
    ]
    assert markdown_table(("<b>",), [["\x1b[2J\n"]], escape=visible).splitlines()[::2] == ["| <b> |", "| \\x1b[2J\\n |"]


def test_an_underscore_within_a_word_is_a_character_and_half_a_surrogate_pair_is_none():
    assert escape_text("a_b _c_ d__e f_") == "a_b &#95;c&#95; d__e f&#95;"
    assert escape_text("# ~x~ $y$ 'z' & \ud800") == "&#35; &#126;x&#126; &#36;y&#36; 'z' &amp; &#92;ud800"
