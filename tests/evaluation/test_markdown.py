from midcourse.evaluation.markdown import escape_text, markdown_table


def test_control_characters_and_markup_cannot_pass():
    assert escape_text("a\x1b[2J\n<b>`x`") == "a&#92;x1b&#91;2J&#92;n&lt;b&gt;&#96;x&#96;"


def test_a_bar_in_a_cell_does_not_break_the_table():
    assert markdown_table(("a",), [["x|y"]]).splitlines()[-1] == "| x\\|y |"
