"""MBPP (arXiv:2108.07732), its sanitized subset, and MBPP+ (arXiv:2305.01210) files."""

import ast
import builtins
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from midcourse.environments.code.grading import CallTests
from midcourse.environments.code.guest import encode
from midcourse.environments.code.problem import Problem

COMPARE_SCRIPT = """
compare_with_reference(
    candidate,
    run_reference(data["reference"], data["entry_point"]),
    data["inputs"],
    agree={agree},
    tolerance=data["tolerance"],
)
"""

# How EvalPlus compares where == would be wrong (its version 0.3.1).
ANY_ORDER = frozenset(
    {
        "similar_elements",
        "find_char_long",
        "common_in_nested_lists",
        "extract_singly",
        "larg_nnum",
        "intersection_array",
        "find_dissimilar",
        "Diff",
    }
)
FOUND_OR_NOT = frozenset({"check_str", "text_match_three", "text_starta_endb"})

TOO_HEAVY: Mapping[int, str] = {
    255: "plus inputs with millions of combinations: the reference itself needs more than 1 GiB and 200 s",
    599: "plus inputs around 100,000,000, summed one by one: the reference itself needs more than 200 s",
}
"""MBPP+ tasks whose own reference solution does not pass within sensible limits, and why. Tagged "too_heavy"."""


def mbpp_problem(record: Mapping[str, Any]) -> Problem:
    """Return the problem of an MBPP record, of the full or of the sanitized file.

    The query shows the first assertion, for the names; the others stay unseen.
    Differs from the paper: there all three are shown, which rewards answers that list them.

    Raises:
        KeyError: a field is missing.
        SyntaxError: a test is no Python.
    """
    setup = "\n".join([*record.get("test_imports", ()), record.get("test_setup_code", "")])
    tests = [*record["test_list"], *record.get("challenge_test_list", ())]
    script = "\n".join([setup, *tests])
    text = (record["text"] if "text" in record else record["prompt"]).strip()
    code = record["code"].replace("\r\n", "\n").strip() + "\n"
    query = f"{text} The code is called like this:\n\n```python\n{tests[0].strip()}\n```"
    return Problem(
        task_id=f"Mbpp/{record['task_id']}",
        query=query,
        tests=CallTests(script=script, names={name: name for name in free_names(script, code)}),
        reference=code,
    )


def mbpp_plus_problem(record: Mapping[str, Any]) -> Problem:
    """Return the problem of an MBPP+ record: base and plus inputs, compared with the reference solution's values.

    Differs from EvalPlus: see docs/code.md.

    Raises:
        KeyError: a field is missing.
        ValueError: the reference solution does not define the entry point, or there is no input.
    """
    number, entry_point = int(str(record["task_id"]).rpartition("/")[2]), record["entry_point"]
    reference = record["canonical_solution"].strip() + "\n"
    inputs = [*record["base_input"], *record["plus_input"]]
    if not inputs:
        raise ValueError("base_input and plus_input are empty: every answer would pass")
    restore = RESTORED.get(number, lambda arguments: arguments)
    data = {
        "reference": reference,
        "entry_point": entry_point,
        "inputs": [restore(arguments) for arguments in inputs],
        "tolerance": record["atol"],
    }
    agree = "same"
    if entry_point in ANY_ORDER:
        agree = "same_members"
    elif entry_point in FOUND_OR_NOT:
        agree = "both_found"
    text = record["prompt"].strip().strip("'\"").strip()
    query = f"{text}\n\nStart from this line:\n\n```python\n{_first_line(reference, entry_point)}\n```"
    return Problem(
        task_id=f"Mbpp/{number}",
        query=query,
        tests=CallTests(script=COMPARE_SCRIPT.format(agree=agree), names={"candidate": entry_point}, data=encode(data)),
        reference=reference,
        tags=("too_heavy",) if number in TOO_HEAVY else (),
    )


def free_names(script: str, reference: str) -> list[str]:
    """Return the names that an answer must define: used by a script, neither bound in it nor built in.

    A name that is built in counts too where the reference solution defines it anew.
    """
    nodes = list(ast.walk(_parsed(script)))
    bound = {node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    bound |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    bound |= {
        alias.asname or alias.name.partition(".")[0]
        for node in nodes
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    }
    anew = {node.name for node in _parsed(reference).body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    used = (node.id for node in nodes if isinstance(node, ast.Name))
    return [name for name in dict.fromkeys(used) if name not in bound and (name in anew or not hasattr(builtins, name))]


def _first_line(reference: str, entry_point: str) -> str:
    for node in _parsed(reference).body:
        if isinstance(node, ast.FunctionDef) and node.name == entry_point:
            return f"def {entry_point}({ast.unparse(node.args)}):"
    raise ValueError(f"canonical_solution: it defines no function {entry_point!r}")


def _parsed(source: str) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the files' own regular expressions are full of invalid escapes
        return ast.parse(source)


# -- types that JSON has not -------------------------------------------------------------------------------------------

Arguments = Sequence[Any]
Restore = Callable[[Arguments], list[Any]]


def _tuples(members: Sequence[Any]) -> list[Any]:
    return [tuple(member) for member in members]


def _each(change: Callable[[Any], Any]) -> Restore:
    return lambda arguments: [change(argument) for argument in arguments]


def _only(position: int, change: Callable[[Any], Any]) -> Restore:
    return lambda arguments: [
        change(argument) if index == position else argument for index, argument in enumerate(arguments)
    ]


def _tuples_within(value: Any) -> Any:
    return tuple(_tuples_within(item) for item in value) if isinstance(value, list) else value


def _set_or_empty_dict(value: Any) -> Any:
    """Return a list as the set that it stands for; an empty one, and null, stand for {}."""
    if isinstance(value, list):
        return set(value) if value else {}
    return {} if value is None else value


def _table(*rows: tuple[Restore, Sequence[int]]) -> Mapping[int, Restore]:
    return {number: restore for restore, numbers in rows for number in numbers}


# fmt: off
RESTORED: Mapping[int, Restore] = _table(
    (_each(tuple), (2, 116, 132, 143, 222, 261, 273, 394, 399, 421, 424, 429, 470, 560, 579, 596, 616, 630, 726, 740,
                    744, 809)),
    (_each(_tuples), (63, 64, 70, 94, 120, 237, 272, 299, 400, 409, 417, 438, 473, 614, 780)),
    (_each(_tuples_within), (259, 278, 401, 445, 580, 615, 791)),
    (_only(0, _tuples), (75, 413, 444, 753)),
    (_only(0, tuple), (250, 307, 405, 446, 617, 720, 763, 808)),
    (_only(1, tuple), (106, 750)),
    (_only(0, lambda members: [_set_or_empty_dict(member) for member in members]), (115,)),
    (_only(0, lambda table: {key: tuple(pair) for key, pair in table.items()}), (722,)),
    (_each(complex), (252,)),
    (lambda arguments: [float(arguments[0]), complex(arguments[1])], (124,)),
)
"""MBPP+ task -> what makes the file's lists and texts the tuples, sets and complex numbers that they stand for."""
# fmt: on
