"""The part of the interpreter that runs in the box, run here: what is shown, what is kept, how errors read."""

import io
import pickle

import pytest

from midcourse.environments.toolqa.guest import ERROR_CHARACTERS, Screen, describe, reply_to

TABLE = pickle.dumps([1, 2, 3])


def replies(*codes: str, limit: int = 100) -> list[tuple[str, str | None]]:
    """Return what each code shows and its error, run one after the other in one scope."""
    scope: dict = {}
    found = [reply_to(code, scope, TABLE, limit) for code in codes]
    return [(reply["text"], reply["error"]) for reply in found]


def test_names_stay_and_the_table_is_fresh_in_every_call():
    assert replies("x = 1\ndf.append(x)", "print(x, df)", "del df", "df") == [
        ("", None),
        ("1 [1, 2, 3]\n", None),
        ("", None),
        ("[1, 2, 3]\n", None),
    ]


def test_a_last_expression_is_shown_unless_it_is_none():
    assert replies("print('a')\n'b'", "print('a')", "x = 3", "", "# nothing") == [
        ("a\n'b'\n", None),
        ("a\n", None),
        ("", None),
        ("", None),
        ("", None),
    ]


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("x = 1\n1 / 0", "ZeroDivisionError: division by zero (line 2)"),
        ("def f():\n    raise KeyError('a')\nf()", "KeyError: 'a' (line 2)"),
        ("this is no Python", "SyntaxError: invalid syntax (line 1)"),
        ("if True:\nx", "IndentationError: expected an indented block after 'if' statement on line 1 (line 2)"),
        ("a\0b", "source code string cannot contain null bytes"),
        ("import sys\nsys.exit(3)", "SystemExit: 3 (the code asked to exit; the interpreter goes on) (line 2)"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt (line 1)"),
        ("assert 0", "AssertionError (line 1)"),
        ("class E(Exception):\n    def __str__(self): raise E\nraise E", "E"),
        ("input()", "EOFError"),
        ("sys.stdout.write(1)", "NameError: name 'sys' is not defined (line 1)"),
        ("import sys\nsys.stdout.write(1)", "TypeError: write() argument must be str, not int (line 2)"),
        ("((((" * 100, "SyntaxError"),
        ("'\\ud800'.encode()", "UnicodeEncodeError"),
    ],
)
def test_an_error_is_one_line_with_the_line_that_raised_it(code, error, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO())
    ((_, found),) = replies(code)
    assert error in found
    assert len(found) <= ERROR_CHARACTERS + 20


def test_what_was_written_before_an_error_is_kept():
    assert replies("print('before')\nboom") == [("before\n", "NameError: name 'boom' is not defined (line 2)")]


def test_of_any_amount_of_output_the_beginning_is_kept():
    screen = Screen(5)
    assert [screen.write(text) for text in ("abc", "defg", "hi")] == [3, 4, 2]
    assert ("".join(screen.kept), screen.num_written, len(screen.kept)) == ("abcde", 9, 2)
    reply = reply_to("print('x' * 1000)\nimport sys\nprint('y', file=sys.stderr)", {}, TABLE, 10)
    assert (reply["text"], reply["written"]) == ("x" * 10, 1003)


def test_a_copy_of_the_process_that_the_code_made_says_nothing():
    assert replies("import os\nchild = os.fork()\nprint('once')\nif child: os.waitpid(child, 0)") == [("once\n", None)]


def test_a_long_error_is_cut():
    assert len(describe(ValueError("x" * 10_000))) == ERROR_CHARACTERS
