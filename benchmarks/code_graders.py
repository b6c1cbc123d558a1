"""Do the code graders accept every reference solution and reject what is wrong? Prints one JSON object.

    python benchmarks/code_graders.py FOLDER [--limit 20] [--mutants 3] [--kind process]

FOLDER holds the official files (docs/code.md says where they are from); those that are absent are left out. gold: the
verdict on each file's own solutions, and seconds a task. mutants: solutions with one operator, constant, condition or
result changed, of the two plus files. A mutant counts only if a run without any grader shows that it returns something
clearly different on some test input; each of those must be rejected.
"""

import argparse
import ast
import copy
import json
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from midcourse.environments.code.environment import CodeConfig, ProblemFile
from midcourse.environments.code.grading import CallTests, Grader, Verdict
from midcourse.environments.code.guest import decode
from midcourse.environments.code.mbpp import ANY_ORDER, FOUND_OR_NOT
from midcourse.environments.code.problem import Problem
from midcourse.environments.sandbox import SandboxConfig

FILES: Mapping[str, tuple[str, str]] = {
    "HumanEval": ("humaneval", "human_eval/HumanEval.jsonl.gz"),
    "HumanEval+": ("humaneval_plus", "humaneval_plus/HumanEvalPlus.jsonl.gz"),
    "MBPP": ("mbpp", "mbpp/mbpp.jsonl"),
    "MBPP sanitized": ("mbpp", "mbpp/sanitized-mbpp.json"),
    "MBPP+": ("mbpp_plus", "mbpp/MbppPlus_082a92d.jsonl"),
}
MUTATED = ("HumanEval+", "MBPP+")
CANDIDATES = 40  # mutants of one solution that are tried for a change of behaviour
SWAPS: Mapping[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.GtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.LtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitAnd,
    ast.And: ast.Or,
    ast.Or: ast.And,
}

# Runs in a box, grades nothing: prints the numbers of the mutants whose values differ from those of the original.
BEHAVIOUR = r'''
import copy, json, math, signal, sys

job = json.loads(sys.stdin.readline())

def view(value, arguments):
    if job["view"] == "root":
        return abs(sum(c * value**i for i, c in enumerate(arguments[0]))) < 1e-2
    if job["view"] == "members":
        return sorted(map(repr, set(value)))
    if job["view"] == "found":
        return value if isinstance(value, bool) else value is not None
    return plain(value)

def plain(value):
    if isinstance(value, float):
        return "%.4g" % value if math.isfinite(value) else repr(value)
    if isinstance(value, (int, bool)):
        return "%.4g" % value if abs(value) < 1e15 else repr(value)
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, [plain(item) for item in value]]
    if isinstance(value, (set, frozenset)):
        return sorted(map(repr, value))
    if isinstance(value, dict):
        return sorted((repr(key), plain(item)) for key, item in value.items())
    return repr(value)

def late(*_):
    raise TimeoutError

signal.signal(signal.SIGPROF, late)

def values(source):
    """Values on the first inputs, as many as there is CPU time for."""
    found = []
    scope = {"__name__": "mutant"}
    signal.setitimer(signal.ITIMER_PROF, 1.0)
    try:
        exec(source, scope)
        function = scope[job["entry_point"]]
        for arguments in inputs:
            try:
                found.append(view(function(*copy.deepcopy(arguments)), arguments))
            except TimeoutError:
                raise
            except Exception as error:
                found.append("raised " + type(error).__name__)
    except TimeoutError:
        pass
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
    return found

inputs = eval(job["inputs"], {"nan": math.nan, "inf": math.inf})
original = values(job["original"])
different = []
for number, source in enumerate(job["mutants"]):
    try:
        if any(one != other for one, other in zip(values(source), original)):
            different.append(number)
    except Exception:
        pass
    if len(different) == job["wanted"]:
        break
print(json.dumps(different))
'''


def mutants(source: str, seed: int) -> Iterator[tuple[str, str]]:
    """Yield what was changed, and the source with that one change, in an order of its own for each seed."""
    tree = ast.parse(source)
    documentation = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    sites = [
        index
        for index, node in enumerate(ast.walk(tree))
        if id(node) not in documentation and _mutated(copy.copy(node)) is not None
    ]
    random.Random(seed).shuffle(sites)
    nodes = list(ast.walk(tree))
    sites.sort(key=lambda index: isinstance(nodes[index], ast.Return))  # the bluntest change last
    for site in sites:
        changed = copy.deepcopy(tree)
        node = next(node for index, node in enumerate(ast.walk(changed)) if index == site)
        name = _mutated(node)
        assert name is not None
        yield name, ast.unparse(changed)


def _mutated(node: ast.AST) -> str | None:
    """Change a node in place and say how; None leaves it as it is."""
    if isinstance(node, ast.Compare):
        node.ops = [SWAPS[type(node.ops[0])](), *node.ops[1:]]  # type: ignore[list-item]
        return "comparison"
    if isinstance(node, (ast.BinOp, ast.AugAssign, ast.BoolOp)):
        swap = SWAPS.get(type(node.op))
        if swap is None:
            return None
        node.op = swap()  # type: ignore[assignment]
        return "operator"
    if isinstance(node, (ast.If, ast.While, ast.IfExp)):
        node.test = ast.UnaryOp(ast.Not(), node.test)
        return "condition"
    if isinstance(node, ast.Return):
        if node.value is None:
            return None
        node.value = ast.Constant(None)
        return "result"
    if isinstance(node, ast.Constant):
        if isinstance(node.value, bool):
            node.value = not node.value
        elif isinstance(node.value, (int, float)):
            node.value += 1
        elif isinstance(node.value, str):
            node.value += "x"
        else:
            return None
        return "constant"
    return None


def behaviour_changes(grader: Grader, problem: Problem, found: Sequence[tuple[str, str]], wanted: int) -> list[int]:
    """Return which of the mutants give other values than the original on the test inputs."""
    assert isinstance(problem.tests, CallTests)
    entry_point = problem.tests.names["candidate"]
    data = decode(problem.tests.data)
    view = "plain"
    if problem.task_id == "HumanEval/32":
        view = "root"
    elif problem.task_id.startswith("Mbpp/") and entry_point in ANY_ORDER | FOUND_OR_NOT:
        view = "members" if entry_point in ANY_ORDER else "found"
    job = {
        "entry_point": entry_point,
        "original": problem.reference,
        "mutants": [source for _, source in found],
        "inputs": repr(data["inputs"][:300]),
        "view": view,
        "wanted": wanted,
    }
    run = grader.run(BEHAVIOUR, json.dumps(job) + "\n")
    return json.loads(run.output) if run.problem is None else []


def grade_gold(grader: Grader, problems: Sequence[Problem], threads: int) -> dict[str, Any]:
    """Return the verdicts on the solutions of a file."""
    started = time.monotonic()
    with ThreadPoolExecutor(threads) as pool:
        grades = list(pool.map(lambda problem: grader.grade(problem.reference or "", problem.tests), problems))
    seconds = sorted(grade.seconds for grade in grades)
    return {
        "tasks": len(problems),
        "verdicts": dict(Counter(grade.verdict for grade in grades)),
        "not_passed": {
            problem.task_id: f"{grade.verdict}: {grade.reason}"
            for problem, grade in zip(problems, grades, strict=True)
            if grade.verdict is not Verdict.PASSED
        },
        "median_seconds": round(statistics.median(seconds), 3),
        "p95_seconds": round(seconds[int(0.95 * (len(seconds) - 1))], 3),
        "tasks_per_second": round(len(problems) / (time.monotonic() - started), 2),
    }


def grade_mutants(grader: Grader, problems: Sequence[Problem], *, wanted: int, threads: int) -> dict[str, Any]:
    """Return how many mutants of proven other behaviour are rejected, and which are not."""

    def of_one(numbered: tuple[int, Problem]) -> list[tuple[str, str, Verdict]]:
        number, problem = numbered
        found = [pair for pair, _ in zip(mutants(problem.reference or "", number), range(CANDIDATES), strict=False)]
        different = behaviour_changes(grader, problem, found, wanted)
        return [(found[i][0], found[i][1], grader.grade(found[i][1], problem.tests).verdict) for i in different]

    with ThreadPoolExecutor(threads) as pool:
        results = list(pool.map(of_one, enumerate(problems)))
    graded = [
        (problem, kind, source, verdict)
        for problem, rows in zip(problems, results, strict=True)
        for kind, source, verdict in rows
    ]
    return {
        "tasks": len(problems),
        "tasks_without_a_mutant": [
            problem.task_id for problem, rows in zip(problems, results, strict=True) if not rows
        ],
        "mutants": len(graded),
        "by_change": dict(Counter(kind for _, kind, _, _ in graded)),
        "verdicts": dict(Counter(verdict for *_, verdict in graded)),
        "accepted": {
            problem.task_id: source
            for problem, _, source, verdict in graded
            if verdict in (Verdict.PASSED, Verdict.SANDBOX_ERROR)
        },
    }


def main() -> None:
    """Grade the files of a folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--limit", type=int, help="problems of each file")
    parser.add_argument("--files", nargs="*", default=list(FILES), choices=list(FILES))
    parser.add_argument("--mutants", type=int, default=3, help="of each solution; 0 makes none")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--kind", choices=("bubblewrap", "process"), default="bubblewrap")
    arguments = parser.parse_args()
    config = CodeConfig(sandbox=SandboxConfig(kind=arguments.kind, wall_seconds=60, cpu_seconds=60))
    grader = Grader(config.sandbox.build(), concurrency=arguments.threads)
    report: dict[str, Any] = {"kind": arguments.kind, "threads": arguments.threads, "gold": {}, "mutants": {}}
    for name in arguments.files:
        file_format, relative = FILES[name]
        path = arguments.folder / relative
        if not path.is_file():
            continue
        problems = ProblemFile.model_validate(
            {"path": str(path), "format": file_format, "count": arguments.limit}
        ).read()
        report["gold"][name] = grade_gold(grader, problems, arguments.threads)
        print(name, report["gold"][name], file=sys.stderr, flush=True)
        if name in MUTATED and arguments.mutants:
            report["mutants"][name] = grade_mutants(
                grader, problems, wanted=arguments.mutants, threads=arguments.threads
            )
            print(name, report["mutants"][name], file=sys.stderr, flush=True)
    print(json.dumps(report, sort_keys=True))


if __name__ == "__main__":
    main()
