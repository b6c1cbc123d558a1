"""AgentBench's five comparisons, worked by hand from its check scripts, and RAIL's tolerances."""

import pytest

from midcourse.environments.agentbench_os.comparisons import COMPARISONS, tolerant


@pytest.mark.parametrize(
    ("name", "answer", "reference", "expected"),
    [
        ("integer-match", "3", "3\n", True),
        ("integer-match", " 03 ", "3", True),
        ("integer-match", "-3", "-3", True),
        ("integer-match", "4", "3\n", False),
        ("integer-match", "3.0", "3", False),
        ("integer-match", "three", "three", False),
        ("integer-match", "", "", False),
        ("integer-match", "9" * 5000, "9" * 5000, False),  # more digits than Python reads: an error, not a crash
        ("string-match", "a\r\nb ", "\na\nb\n", True),
        ("string-match", "A", "a", False),
        ("string-match", "a b", "a  b", False),
        ("size-match", "2K", "2048", True),
        ("size-match", "2KB", "2K", True),
        ("size-match", "4.0K\n", "4096", True),
        ("size-match", "1.5M", "1536K", True),
        ("size-match", "2M", "2K", False),
        ("size-match", "2k", "2048", False),
        ("size-match", "K", "K", False),
        ("size-match", "", "", False),
        ("containing", "it is /usr/a here", "/usr/a", True),
        ("containing", "/usr", "/usr/a", False),
        ("in", "/usr", "/usr/a", True),
        ("in", "/usr/a", "/usr", False),
    ],
)
def test_comparisons_are_those_of_the_check_scripts(name, answer, reference, expected):
    assert COMPARISONS[name](answer, reference) is expected


@pytest.mark.parametrize(
    ("answer", "reference", "expected"),
    [
        ("Blue", "blue", True),
        ("The answer is 7.", "7", True),
        ("007", "7", True),
        ("It lies in /var/log", "/var/log", True),
        ("17", "7", False),
        ("7 or 8", "7", False),  # another number beside it
        ("-7", "7", False),
        ("70", "7", False),
        ("blueish", "blue", False),
        ("/var/logs", "/var/log", False),
        ("7" + " and so on" * 5, "7", False),  # longer than the margin
        ("", "", True),
        ("anything", "", False),
    ],
)
def test_tolerance_is_bounded(answer, reference, expected):
    assert tolerant(answer, reference) is expected
