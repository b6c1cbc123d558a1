"""What runs inside the boxes: one file of standard library, sent as text, in one of three parts.

candidate: loads an answer and calls what it defines, on request. From then on nothing in this process can be trusted:
    the answer may have replaced all of it. That gains it nothing, because it holds no expected value and no verdict.
checker: holds the tests, calls the answer through the candidate, compares, and says the verdict. It never runs a line
    of the answer: what comes back is plain data, decoded without running anything.
program: runs an answer as a program on standard input; the comparison is made outside.

Requests and replies are lines of JSON. Values keep their Python types: what JSON has not is an object with one tag.
"""

import builtins
import copy
import json
import math
import os
import resource
import sys
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

TEXT_LIMIT = 500  # characters of an error's text
PIPE_BYTES = 2**18  # read at once, where there is so much
OUT_OF_MEMORY = 86  # exit status of a program whose allocation failed
INTEGERS = 2**63  # beyond it JSON's decimal digits would be slow to read, and some are refused
PLAIN = frozenset({int, float, str, bool, type(None)})
TYPES = {kind.__name__: kind for kind in (bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset)}


class CannotEncode(Exception):
    """A value has no plain form."""


def encode(value: Any, keep: Callable[[Any], int] | None = None) -> Any:
    """Return a value as JSON can hold it. Subclasses become what they are made of: equality does not see them.

    Args:
        value: anything.
        keep: takes an object without a plain form and returns its handle.

    Raises:
        CannotEncode: there is such an object, and no `keep`.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Remote):
        return {"object": value._handle}
    if isinstance(value, int):
        number = int(value)
        return number if -INTEGERS <= number < INTEGERS else {"int": hex(number)}
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, (bytes, bytearray)):
        return {"bytes": bytes(value).hex()}
    if isinstance(value, list):
        return value if _is_plain(value) else [encode(item, keep) for item in value]
    for tag, kind in (("tuple", tuple), ("set", set), ("frozenset", frozenset)):
        if isinstance(value, kind):
            return {tag: [encode(item, keep) for item in value]}
    if isinstance(value, dict):
        return {"dict": [[encode(key, keep), encode(item, keep)] for key, item in value.items()]}
    if isinstance(value, type) and TYPES.get(value.__name__) is value:
        return {"type": value.__name__}
    if type(value).__module__ == "numpy" and hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        return encode(value.item(), keep)
    if keep is None:
        raise CannotEncode(f"a {type(value).__name__} has no plain form")
    return {"object": keep(value)}


def decode(node: Any, objects: Callable[[int], Any] | None = None) -> Any:
    """Return the value of what `encode` made. `objects` gives what stands for a handle.

    Raises:
        ValueError, TypeError, KeyError: no encoding of a value (or one of a set of lists, and the like).
    """
    if isinstance(node, list):
        return node if PLAIN.issuperset(map(type, node)) else [decode(item, objects) for item in node]
    if not isinstance(node, dict):
        return node
    ((tag, content),) = node.items()
    if tag == "object":
        if objects is None:
            raise ValueError("an object has no plain form")
        return objects(content)
    if tag == "int":
        return int(content, 16)
    if tag == "complex":
        return complex(*content)
    if tag == "bytes":
        return bytes.fromhex(content)
    if tag == "dict":
        return {decode(key, objects): decode(item, objects) for key, item in content}
    if tag == "type":
        return TYPES[content]
    return {"tuple": tuple, "set": set, "frozenset": frozenset}[tag](decode(item, objects) for item in content)


def _is_plain(items: list[Any]) -> bool:
    """Return whether JSON holds these as they are: a million numbers are not worth a million calls."""
    kinds = set(map(type, items))
    if kinds == {int}:
        return min(items) >= -INTEGERS and max(items) < INTEGERS
    return kinds <= PLAIN - {int}


def limit_resources(limits: Mapping[str, int]) -> None:
    """Take the limits that a process carries, for good: they cannot be raised again."""
    for name in ("memory", "file", "cpu", "processes", "files"):
        kind = {
            "memory": resource.RLIMIT_AS,
            "file": resource.RLIMIT_FSIZE,
            "cpu": resource.RLIMIT_CPU,
            "processes": resource.RLIMIT_NPROC,
            "files": resource.RLIMIT_NOFILE,
        }[name]
        resource.setrlimit(kind, (limits[name], limits[name]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def describe(error: BaseException) -> str:
    """Return an exception as one short line."""
    try:
        return f"{type(error).__name__}: {error}"[:TEXT_LIMIT]
    except BaseException:
        return type(error).__name__


def module_scope(name: str) -> dict[str, Any]:
    """Return the globals of a module that classes of the code can be found in by name."""
    module = types.ModuleType(name)
    sys.modules[name] = module
    return module.__dict__


def take_pipes() -> tuple[Any, Any]:
    """Return standard input and output as line pipes of our own; the usual ones lead nowhere from then on."""
    requests, replies = os.fdopen(os.dup(0), "rb", PIPE_BYTES), os.fdopen(os.dup(1), "wb", PIPE_BYTES)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1):
        os.dup2(nowhere, standard)
    return requests, replies


# -- candidate ---------------------------------------------------------------------------------------------------------


class Candidate:
    """An answer that has been loaded, and the objects of it that were asked about."""

    def __init__(self) -> None:
        self.scope = module_scope("answer")
        self.objects: list[Any] = []

    def keep(self, value: Any) -> int:
        """Return a handle of an object."""
        self.objects.append(value)
        return len(self.objects) - 1

    def answer(self, request: Mapping[str, Any]) -> Any:
        """Return what one request asks for."""
        operation = request["do"]
        if operation == "load":
            exec(compile(request["source"], "answer.py", "exec"), self.scope)
            return None
        if operation == "name":
            if request["name"] not in self.scope:
                raise NameError(f"the answer defines no {request['name']!r}")
            return self.scope[request["name"]]
        subject = self.objects[request["object"]]
        if operation == "get":
            return getattr(subject, request["name"])
        if operation == "set":
            return setattr(subject, request["name"], decode(request["value"], self.objects.__getitem__))
        arguments, named = decode(request["arguments"], self.objects.__getitem__)
        return subject(*arguments, **named)


def run_candidate(limits: Mapping[str, int]) -> None:
    """Answer requests until there are no more."""
    requests, replies = take_pipes()
    os.dup2(1, 2)
    limit_resources(limits)
    candidate = Candidate()
    for line in requests:
        try:
            request = json.loads(line)
            value = None if request["do"] == "hello" else candidate.answer(request)
            reply = json.dumps({"value": encode(value, candidate.keep)})
        except MemoryError:
            reply = '{"memory": "MemoryError"}'
        except BaseException as error:
            reply = json.dumps({"error": describe(error)})
        replies.write(reply.encode() + b"\n")
        replies.flush()


# -- checker -----------------------------------------------------------------------------------------------------------


class CandidateFailed(Exception):
    """The answer raised, or replied with something that is no value."""


class CandidateGone(BaseException):
    """The answer's process is no longer there. No test may catch this and go on."""


class CandidateOutOfMemory(CandidateFailed):
    """An allocation of the answer failed."""


class ReferenceFailed(BaseException):
    """A test or a reference solution is broken. Says nothing about the answer."""


class Channel:
    """The checker's end of the pipes."""

    def __init__(self, requests: Any, replies: Any, reply_bytes: int) -> None:
        self._requests, self._replies, self._reply_bytes = requests, replies, reply_bytes

    def send(self, **request: Any) -> None:
        """Send a request without waiting for its reply.

        Raises:
            CandidateGone: nobody reads it.
        """
        try:
            self._requests.write(json.dumps(request).encode() + b"\n")
            self._requests.flush()
        except BrokenPipeError:
            raise CandidateGone from None

    def receive(self) -> Any:
        """Return the reply to the oldest request without one, as a value of this process.

        Raises:
            CandidateFailed: the answer raised, or its reply cannot be read.
            CandidateGone: there is no reply.
        """
        line = self._replies.readline(self._reply_bytes)
        if not line:
            raise CandidateGone
        if not line.endswith(b"\n"):
            raise CandidateFailed("a reply is longer than what is read, or was cut off")
        try:
            reply = json.loads(line)
            if "value" in reply:
                return decode(reply["value"], lambda handle: Remote(self, int(handle)))
            text = str(reply.get("error") or reply["memory"])[:TEXT_LIMIT]
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError) as error:
            raise CandidateFailed(f"a reply cannot be read: {describe(error)}") from None
        raise CandidateOutOfMemory(text) if "memory" in reply else CandidateFailed(text)

    def ask(self, **request: Any) -> Any:
        """Return the reply to a request. Raises as `send` and `receive`."""
        self.send(**request)
        return self.receive()


class Remote:
    """Stands in the checker for a function, class or object of the answer. Equal to nothing but itself."""

    __slots__ = ("_channel", "_handle")

    def __init__(self, channel: Channel, handle: int) -> None:
        object.__setattr__(self, "_channel", channel)
        object.__setattr__(self, "_handle", handle)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._channel.ask(do="call", object=self._handle, arguments=encode((arguments, named)))

    def _begin(self, *arguments: Any) -> Callable[[], Any]:
        """Return what waits for the value of a call that has been sent off."""
        self._channel.send(do="call", object=self._handle, arguments=encode((arguments, {})))
        return self._channel.receive

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._channel.ask(do="get", object=self._handle, name=name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._channel.ask(do="set", object=self._handle, name=name, value=encode(value))


def same(value: Any, expected: Any, tolerance: float = 0.0) -> bool:
    """Return whether a value is the expected one: by ==, floats within the tolerance, two NaN alike.

    Floats are compared leaf by leaf of lists, tuples and dicts, with a relative tolerance of 1e-7 besides.
    """
    if type(value) is type(expected) and value == expected:
        return True
    if isinstance(expected, (list, tuple)):
        kind = list if isinstance(expected, list) else tuple
        return (
            isinstance(value, kind)
            and len(value) == len(expected)
            and all(same(one, other, tolerance) for one, other in zip(value, expected, strict=True))
        )
    if isinstance(expected, dict):
        return (
            isinstance(value, dict)
            and len(value) == len(expected)
            and all(key in value and same(value[key], item, tolerance) for key, item in expected.items())
        )
    if isinstance(expected, float) and isinstance(value, (int, float)):
        if math.isnan(expected):
            return math.isnan(value)
        if value == expected:
            return True
        return bool(tolerance) and math.isfinite(expected) and abs(value - expected) <= tolerance + 1e-7 * abs(expected)
    return bool(value == expected)


def same_members(value: Any, expected: Any, tolerance: float = 0.0) -> bool:
    """Return whether two collections hold the same members, whatever their order and kind."""
    known = set(expected)
    if not isinstance(value, (list, tuple, set, frozenset, str)):
        return False
    return all(item in known for item in value) and len({item for item in value if item in known}) == len(known)


def both_found(value: Any, expected: Any, tolerance: float = 0.0) -> bool:
    """Return whether both say the same about there being something; a bool counts as itself, all else by not None."""
    return (value if isinstance(value, bool) else value is not None) == (
        expected if isinstance(expected, bool) else expected is not None
    )


def run_reference(source: str, entry_point: str) -> Callable[..., Any]:
    """Return the function that a reference solution defines, made to blame itself for what it raises."""
    scope = module_scope("reference")
    try:
        exec(compile(source, "reference.py", "exec"), scope)
        function = scope[entry_point]
    except Exception as error:
        raise ReferenceFailed(describe(error)) from error

    def blaming(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except Exception as error:
            raise ReferenceFailed(describe(error)) from error

    return blaming


def compare_with_reference(
    candidate: Any,
    reference: Callable[..., Any],
    inputs: Iterable[Sequence[Any]],
    *,
    agree: Callable[[Any, Any, float], bool] = same,
    tolerance: float = 0.0,
) -> None:
    """Call both on each input; the first that differs is an AssertionError that names it."""
    for number, arguments in enumerate(inputs):
        value_of = candidate._begin(*arguments)  # both work at the same time
        expected = reference(*copy.deepcopy(arguments))
        # Floats are never compared exactly: sums taken in another order are right as well.
        slack = tolerance or (1e-6 if _holds_floats(expected) else 0.0)
        if not agree(value_of(), expected, slack):
            raise AssertionError(f"input {number} gives another value than the reference")


def compare_with_values(candidate: Any, pairs: Iterable[tuple[Sequence[Any], Any]]) -> None:
    """Call on the arguments of each pair; the first value that differs is an AssertionError. Tuples are lists here."""
    for number, (arguments, expected) in enumerate(pairs):
        if not same(lists_for_tuples(candidate(*arguments)), expected):
            raise AssertionError(f"test {number} gives another value than expected")


def lists_for_tuples(value: Any) -> Any:
    """Return a value with lists in the place of tuples, as JSON knows no others."""
    return [lists_for_tuples(item) for item in value] if isinstance(value, (list, tuple)) else value


def _holds_floats(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(_holds_floats(item) for item in value)
    if isinstance(value, dict):
        return any(_holds_floats(item) for item in value.values())
    return isinstance(value, float)


HELPERS = (same, same_members, both_found, run_reference, compare_with_reference, compare_with_values)
"""What a test script may call besides the answer."""


def judge(channel: Channel, job: Mapping[str, Any], running: Callable[[], None]) -> tuple[str, str]:
    """Return the verdict on an answer and a short reason.

    Whatever goes wrong once the answer is loaded is the answer's own; a test that is broken by itself is not.
    """
    try:
        script = compile(job["script"], "tests.py", "exec")
        scope = module_scope("tests")
        scope |= {helper.__name__: helper for helper in HELPERS}
        scope["data"] = decode(job["data"])
        channel.ask(do="hello")
    except CandidateGone:
        return "sandbox_error", "the answer's sandbox did not come up"
    except Exception as error:
        return "sandbox_error", f"the tests cannot be used: {describe(error)}"
    running()
    try:
        for source in (job["prelude"], job["source"]):
            channel.ask(do="load", source=source)
        for name, defined in job["names"].items():
            scope[name] = channel.ask(do="name", name=defined)
        exec(script, scope)
    except CandidateGone:
        return "gone", "the answer ended its process"
    except (CannotEncode, ReferenceFailed) as error:
        return "sandbox_error", f"the tests cannot be used: {describe(error)}"
    except (CandidateOutOfMemory, MemoryError) as error:
        return "memory", describe(error)
    except AssertionError as error:
        return "failed", describe(error)
    except CandidateFailed as error:
        return "failed", str(error)
    except Exception as error:
        return "failed", f"a test could not use what came back: {describe(error)}"
    return "passed", ""


def run_checker(reply_bytes: int, limits: Mapping[str, int]) -> None:
    """Take the job from the first line of input, say one line when the answer starts and one when it is judged."""
    replies, requests = take_pipes()
    limit_resources(limits)  # what comes back may be made to be dear to read

    def say(text: str) -> None:
        os.write(2, text.encode() + b"\n")

    job = json.loads(replies.readline())
    verdict, reason = judge(Channel(requests, replies, reply_bytes), job, lambda: say("running"))
    say(json.dumps({"verdict": verdict, "reason": reason}))


# -- program -----------------------------------------------------------------------------------------------------------


def run_program(source_bytes: int, limits: Mapping[str, int]) -> None:
    """Take the program's text from the beginning of standard input; the rest of it is the program's."""
    text = b""
    while len(text) < source_bytes:
        chunk = os.read(0, source_bytes - len(text))
        if not chunk:
            raise EOFError("the program was cut off")
        text += chunk
    os.write(1, b"running\n")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    limit_resources(limits)
    sys.argv = ["answer.py"]
    try:
        exec(compile(text, "answer.py", "exec"), module_scope("__main__"))
        sys.stdout.flush()
    except MemoryError:
        os._exit(OUT_OF_MEMORY)


def main() -> None:
    """Play the part that the command line names."""
    part, settings = sys.argv[1], json.loads(sys.argv[2])
    sys.path += settings["packages"]
    builtins.exit = builtins.quit = sys.exit  # the site module, which is not loaded, would bring them
    if part == "candidate":
        run_candidate(settings["limits"])
    elif part == "checker":
        run_checker(settings["reply_bytes"], settings["limits"])
    else:
        run_program(settings["source_bytes"], settings["limits"])
