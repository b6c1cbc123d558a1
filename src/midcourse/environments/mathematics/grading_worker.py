"""The program of a grading process: reads one request, answers it, waits for the next. Never imported by a run.

Graders interpret what a model wrote: they can loop, eat memory and overflow the stack, and math-verify bounds itself
with signals that work in a main thread alone. So each grader runs in the main thread of a process of its own. The
kernel ends the process when a request has used its CPU seconds, also where nobody is left to wait for the answer, and
whoever asked reads that from the exit status. Standard output leads nowhere, so that nothing can forge an answer.

Messages are JSON; the first one out says that the grader is loaded, or why it could not be.
"""

import json
import os
import resource
import signal
import sys
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from multiprocessing.connection import Connection
from typing import Any

Request = Mapping[str, Any]
Grader = Callable[[Request], Callable[[], Any]]
"""Request -> what is run under the limit. What the policy did not write is read before that."""
MAX_MESSAGE_BYTES = 16 * 2**20


def math_verify_grader(settings: Request) -> Grader:
    """Return a grader of {"reference", "answer"} -> whether they are equal, and of {"reference"} -> is it readable."""
    import logging

    import sympy
    from math_verify import LatexExtractionConfig, parse, verify

    logging.disable(logging.WARNING)  # it warns once that its own timeouts are off
    # Both sides are boxed and the box comes first: what is read is the whole of both, not some number within.
    targets = (LatexExtractionConfig(boxed_match_priority=0),)

    def boxed(text: str) -> str:
        return f"\\boxed{{{text}}}"

    @lru_cache(maxsize=4096)
    def read_reference(text: str) -> tuple[Any, ...]:
        return tuple(parse(boxed(text), extraction_config=targets, parsing_timeout=0))

    def grade(reference: str, answer: str | None) -> bool:
        read = list(read_reference(reference))
        if answer is None:
            # Comparing makes it compute what parsing only wrote down, as a tower of powers.
            return bool(read) and verify(read, [sympy.Integer(1)], timeout_seconds=None) is not None
        said = parse(boxed(answer), extraction_config=targets, parsing_timeout=0)
        return bool(verify(read, said, timeout_seconds=None))

    return lambda request: partial(grade, request["reference"], request.get("answer"))


def reasoning_gym_grader(settings: Request) -> Grader:
    """Return a grader of {"index", "question", "answer"} -> score in [0, 1] by the scorer of the dataset in `settings`.

    None where this process generates another question under that index.
    """
    import reasoning_gym  # pyright: ignore[reportMissingImports] (optional)

    dataset = reasoning_gym.create_dataset(settings["dataset"], **settings["arguments"])

    def grade(entry: dict[str, Any], request: Request) -> float | None:
        if entry["question"] != request["question"]:
            return None
        # Some scorers raise on an answer of another form than theirs. Which errors, each of them decides.
        try:
            return float(dataset.score_answer(request["answer"], entry))
        except Exception:
            return 0.0

    return lambda request: partial(grade, dataset[request["index"]], request)


GRADERS: Mapping[str, Callable[[Request], Grader]] = {
    "math_verify": math_verify_grader,
    "reasoning_gym": reasoning_gym_grader,
}


def limit_memory(num_bytes: int) -> None:
    """Let the process take `num_bytes` more than it has now (Linux; elsewhere nothing counts address space)."""
    if sys.platform == "linux":
        with open("/proc/self/statm", encoding="ascii") as sizes:
            taken = int(sizes.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + num_bytes, taken + num_bytes))


def serve(connection: Connection, settings: Request) -> None:
    """Answer requests until the other end is closed."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    try:
        grader = GRADERS[settings["grader"]](settings)
    except Exception as error:  # whoever asked shows it: there is no other place where it could be seen
        connection.send_bytes(json.dumps({"error": f"{type(error).__name__}: {error}"}).encode())
        return
    limit_memory(settings["memory_bytes"])
    connection.send_bytes(json.dumps({"ready": True}).encode())
    while True:
        try:
            request = json.loads(connection.recv_bytes(MAX_MESSAGE_BYTES))
        except EOFError:
            return
        grade = grader(request)
        signal.setitimer(signal.ITIMER_PROF, settings["cpu_seconds"])
        value = grade()
        signal.setitimer(signal.ITIMER_PROF, 0)
        connection.send_bytes(json.dumps({"value": value}).encode())


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])), json.loads(sys.argv[2]))
    os._exit(0)  # graders may have left threads behind
