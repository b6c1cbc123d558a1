"""LiveCodeBench files (arXiv:2403.07974, code generation): programs on standard input, and calls."""

import base64
import binascii
import io
import json
import pickle
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from midcourse.environments.code.grading import CallTests, ProgramTests
from midcourse.environments.code.guest import encode
from midcourse.environments.code.problem import Problem

UNPACKED_BYTES = 2**30
# What code written for a contest site takes for granted.
CALL_PRELUDE = "".join(
    f"import {module}\nfrom {module} import *\n"
    for module in ("collections", "functools", "heapq", "bisect", "itertools", "math", "string", "re", "typing")
)
METHOD_SCRIPT = 'compare_with_values(getattr(Solution(), data["function"]), data["pairs"])'
FUNCTION_SCRIPT = 'compare_with_values(candidate, data["pairs"])'


def livecodebench_problem(record: Mapping[str, Any]) -> Problem:
    """Return the problem of a LiveCodeBench record. Public and private tests count alike.

    A record may carry a `reference` solution, which the original files do not have.

    Raises:
        KeyError: a field is missing.
        ValueError: tests cannot be read, or there are none, or both kinds in one record.
    """
    starter = record.get("starter_code") or ""
    tests = [*json.loads(record["public_test_cases"]), *private_tests(record.get("private_test_cases") or "[]")]
    kinds = {test["testtype"] for test in tests}
    if kinds == {"stdin"}:
        built: CallTests | ProgramTests = ProgramTests(cases=[(test["input"], test["output"]) for test in tests])
        task = "Write a Python program that reads standard input and writes its answer to standard output."
    elif kinds == {"functional"}:
        built = _call_tests(tests, function=json.loads(record["metadata"])["func_name"], starter=starter)
        task = f"Complete this code; answer with all of it.\n\n```python\n{starter.rstrip()}\n```"
    else:
        raise ValueError(f"tests must all be of one type, stdin or functional: got {sorted(kinds) or 'no tests'}")
    tags = [f"{name}:{record[name]}" for name in ("platform", "difficulty") if record.get(name)]
    return Problem(
        task_id=f"LiveCodeBench/{record['question_id']}",
        query=f"{record['question_content'].strip()}\n\n{task}",
        tests=built,
        reference=record.get("reference"),
        tags=tuple(tags),
    )


def private_tests(packed: str) -> list[Mapping[str, Any]]:
    """Return the tests of a field that holds JSON, or JSON that was pickled, compressed and written in base 64.

    Raises:
        ValueError: it holds something else.
    """
    try:
        return json.loads(packed)
    except ValueError:
        pass
    try:
        unpacker = zlib.decompressobj()
        content = unpacker.decompress(base64.b64decode(packed, validate=True), UNPACKED_BYTES)
        if unpacker.unconsumed_tail:
            raise ValueError(f"more than {UNPACKED_BYTES} bytes when unpacked")
        return json.loads(_TextUnpickler(io.BytesIO(content)).load())
    except (binascii.Error, zlib.error, pickle.UnpicklingError, EOFError, TypeError) as error:
        raise ValueError(f"private_test_cases cannot be unpacked: {error}") from error


class _TextUnpickler(pickle.Unpickler):
    """Reads a pickled text. A pickle that asks for any class or function could run code, and is refused."""

    def find_class(self, module_name: str, global_name: str) -> Any:
        raise pickle.UnpicklingError(f"it asks for {module_name}.{global_name}")


def _call_tests(tests: Sequence[Mapping[str, Any]], *, function: str, starter: str) -> CallTests:
    pairs = [
        ([json.loads(line) for line in test["input"].split("\n") if line.strip()], json.loads(test["output"]))
        for test in tests
    ]
    is_method = "class Solution" in starter
    return CallTests(
        script=METHOD_SCRIPT if is_method else FUNCTION_SCRIPT,
        names={"Solution": "Solution"} if is_method else {"candidate": function},
        prelude=CALL_PRELUDE,
        data=encode({"function": function, "pairs": pairs}),
    )
