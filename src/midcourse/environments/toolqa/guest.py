"""What runs inside the box: one Python that runs code call by call and remembers names, sent as text.

Nothing in this process can be trusted once code of the policy has run in it: that may have replaced all of it. It gains
nothing by that, because no reference is in here, and what is replied goes back to the policy alone.

Requests and replies are lines of JSON. The first request holds the table; every other one code to run.
"""

import ast
import builtins
import io
import json
import os
import pickle
import random
import resource
import signal
import sys
import traceback
import types
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout, suppress
from typing import Any

CODE_NAME = "<code>"
ERROR_CHARACTERS = 500
SCREEN_COLUMNS = 120


class Screen(io.TextIOBase):
    """Takes any amount of text and keeps the beginning."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.kept: list[str] = []
        self.num_kept = 0
        self.num_written = 0

    def writable(self) -> bool:
        """Say that it takes text."""
        return True

    def write(self, text: str) -> int:
        """Keep what there is room for."""
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        part = text[: self.limit - self.num_kept]
        if part:
            self.kept.append(part)
            self.num_kept += len(part)
        self.num_written += len(text)
        return len(text)


def run(code: str, scope: dict[str, Any]) -> None:
    """Run code in a scope; a last line that is an expression is shown, as at a prompt."""
    tree = ast.parse(code, CODE_NAME)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, CODE_NAME, "exec"), scope)
    if isinstance(last, ast.Expr):
        value = eval(compile(ast.Expression(last.value), CODE_NAME, "eval"), scope)
        if value is not None:
            print(repr(value))


def describe(error: BaseException) -> str:
    """Return an exception as one short line, with the line of the code that raised it."""
    try:
        if isinstance(error, SyntaxError):
            return f"{type(error).__name__}: {error.msg} (line {error.lineno})"[:ERROR_CHARACTERS]
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == CODE_NAME]
        text = f"{type(error).__name__}: {error}".removesuffix(": ")
        if isinstance(error, SystemExit):
            text += " (the code asked to exit; the interpreter goes on)"
        return text[:ERROR_CHARACTERS] + (f" (line {lines[-1]})" if lines else "")
    except BaseException:
        return type(error).__name__


def reply_to(code: str, scope: dict[str, Any], table: bytes, limit: int) -> dict[str, Any]:
    """Return what one piece of code wrote, how much of it there was, and the error that it ended with."""
    own_process = os.getpid()
    screen = Screen(limit)
    error_text = None
    try:
        with redirect_stdout(screen), redirect_stderr(screen):
            scope["df"] = pickle.loads(table)  # whatever an earlier call did to its own
            run(code, scope)
    except BaseException as error:
        error_text = describe(error)
    finally:
        if os.getpid() != own_process:
            os._exit(0)  # a copy that the code made of this process has nothing to say
    return {"text": "".join(screen.kept), "written": screen.num_written, "error": error_text}


def end_others() -> None:
    """Kill every other process of the box, and forget those that were children."""
    with suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)
    with suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)


def limit_resources(limits: Mapping[str, int]) -> None:
    """Take the limits that a process carries, for good: they cannot be raised again."""
    kinds = {
        "memory": resource.RLIMIT_AS,
        "file": resource.RLIMIT_FSIZE,
        "cpu": resource.RLIMIT_CPU,
        "processes": resource.RLIMIT_NPROC,
        "files": resource.RLIMIT_NOFILE,
    }
    for name, kind in kinds.items():
        resource.setrlimit(kind, (limits[name], limits[name]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main() -> None:
    """Load the table, say so, and answer requests until there are no more."""
    settings = json.loads(sys.argv[1])
    limit_resources(settings["limits"])
    sys.path += settings["packages"]
    builtins.exit = builtins.quit = sys.exit  # the site module, which is not loaded, would bring them
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")

    import numpy
    import pandas

    numpy.set_printoptions(legacy="1.25")  # 306.25, not np.float64(306.25)
    pandas.set_option("display.width", SCREEN_COLUMNS)
    # Two runs of the same code must show the same: forks are made by running it again.
    random.seed(0)
    numpy.random.seed(0)
    frame = pandas.read_csv(io.StringIO(json.loads(requests.readline())["table"]))
    table = pickle.dumps(frame)
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module  # where pickle and the like look for what the code defines
    scope = module.__dict__
    scope.update(pd=pandas, np=numpy)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nowhere, standard)
    replies.write(b'{"ready": true}\n')
    replies.flush()
    for number, line in enumerate(requests):
        reply = reply_to(json.loads(line)["code"], scope, table, settings["characters"])
        if settings["is_alone"]:
            end_others()
        replies.write(json.dumps({"number": number, **reply}).encode() + b"\n")
        replies.flush()
