"""Comparing what a program wrote with what it should have written."""

from decimal import Decimal, InvalidOperation


def same_output(written: str, expected: str) -> bool:
    """Return whether two texts are the same line by line, white space around lines and at the end left out.

    Lines that differ are compared word by word as exact decimal numbers, as LiveCodeBench does: 1.0 is 1.
    """
    written, expected = written.strip(), expected.strip()
    if written.count("\n") != expected.count("\n"):  # before millions of lines are taken apart for nothing
        return False
    lines, wanted = _lines(written), _lines(expected)
    return all(map(_same_line, lines, wanted))


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.split("\n")]


def _same_line(line: str, wanted: str) -> bool:
    if line == wanted:
        return True
    # A number that is written at far greater length than the expected line is no way of writing it.
    if len(line) > 2 * len(wanted) + 64:
        return False
    words, wanted_words = line.split(), wanted.split()
    return len(words) == len(wanted_words) and all(map(_same_word, words, wanted_words))


def _same_word(word: str, wanted: str) -> bool:
    if word == wanted:
        return True
    try:
        return Decimal(word) == Decimal(wanted)
    except InvalidOperation:
        return False
