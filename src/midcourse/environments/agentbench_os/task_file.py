"""AgentBench's OS tasks from its files (docs/agentbench_os.md says where to get them)."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from midcourse.environments.agentbench_os.comparisons import COMPARISONS
from midcourse.environments.base import Evidence, Task
from midcourse.environments.records import read_records
from midcourse.errors import DataError

logger = logging.getLogger(__name__)

Language = Literal["bash", "python"]
IMAGES = ("default", "packages")
NAMED = 5  # tasks that a message lists before it counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A program of a task, run in its system."""

    language: Language
    source: str = field(repr=False)

    def command(self, arguments: Sequence[str] = (), *, prologue: str = "") -> list[str]:
        """Return how it is run; `prologue` is put before a bash script."""
        if self.language == "python":
            return ["python3", "-c", self.source, *arguments]
        return ["/bin/bash", "-c", prologue + self.source, *(["--", *arguments] if arguments else [])]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A step of a check: compares the answer with the last value before it. `name` is a key of COMPARISONS."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One task with what its reward knows. Exactly one of `match` and `check` decides."""

    task_id: str
    query: str
    set_name: str
    init: Sequence[Script] = field(repr=False)
    start: str | None = field(repr=False)  # run in the policy's own shell
    match: str | None = field(repr=False)  # the answer, exactly
    check: Sequence[Script | Comparison] = field(repr=False)  # in order; each script's output is a value for the next
    example: Script | None = field(repr=False)  # does the task, or prints the answer

    @property
    def needs_answer(self) -> bool:
        """Whether the task cannot be done by what is done alone."""
        return self.match is not None or any(isinstance(step, Comparison) for step in self.check)

    @property
    def grading(self) -> str:
        """How it is graded, in a word."""
        compared = [step.name for step in self.check if isinstance(step, Comparison)]
        return "match" if self.match is not None else "+".join(compared) or "script"

    def task(self, split: str) -> Task:
        """Return the task as a rollout gets it."""
        text = [f"Reference answer: {self.match}"] if self.match is not None else []
        if self.example is not None:
            purpose = "prints the answer" if self.needs_answer and self.match is None else "does what is asked"
            text.append(f"A script that {purpose} ({self.example.language}):\n{self.example.source}")
        scripts = [step for step in self.check if isinstance(step, Script) and step is not self.example]
        text += [f"A script that checks it ({script.language}):\n{script.source}" for script in scripts]
        return Task(
            task_id=self.task_id,
            split=split,
            query=self.query,
            tags=(f"set:{self.set_name}", f"grading:{self.grading}"),
            evidence=Evidence(
                text="\n".join(text),
                private_values=() if self.match is None else (self.match,),
                facts={
                    "answer": self.match,
                    "example": None if self.example is None else self.example.source,
                    "example_language": None if self.example is None else self.example.language,
                    "needs_answer": self.needs_answer,
                },
            ),
        )


class _Script(BaseModel):
    model_config = ConfigDict(extra="ignore")

    language: Language = "bash"
    code: str | None = None
    file: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _text_is_bash(cls, value: Any) -> Any:
        return {"code": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _has_one_source(self) -> "_Script":
        if (self.code is None) == (self.file is None):
            raise ValueError("a script has either code or file")
        return self

    def comparison(self) -> Comparison | None:
        """Return the comparison that AgentBench's script of this name makes."""
        path = PurePosixPath(self.file or "")
        return Comparison(name=path.stem) if path.suffix == ".py" and path.stem in COMPARISONS else None


class _Create(BaseModel):
    model_config = ConfigDict(extra="ignore")

    local: str = "default"
    init: list[_Script] = Field(default_factory=list)

    @field_validator("init", mode="before")
    @classmethod
    def _one_is_a_list(cls, value: Any) -> Any:
        return value if isinstance(value, list) else [value]

    @field_validator("local")
    @classmethod
    def _is_prepared(cls, value: str) -> str:
        if value not in IMAGES:
            raise ValueError(f"unknown image {value!r}; known: {', '.join(IMAGES)}")
        return value


class _Evaluation(BaseModel):
    model_config = ConfigDict(extra="ignore")

    match: str | None = None
    check: list[_Script | None] = Field(default_factory=list)
    example: _Script | None = None

    @field_validator("check", mode="before")
    @classmethod
    def _one_is_a_list(cls, value: Any) -> Any:
        return value if isinstance(value, list) else [value]

    @model_validator(mode="after")
    def _decides(self) -> "_Evaluation":
        if (self.match is None) == (not self.check):
            raise ValueError("a task has either match or check")
        if None in self.check and self.example is None:
            raise ValueError("check: null stands for the example, and there is none")
        if self.check and self.check[0] is not None and self.check[0].comparison() is not None:
            raise ValueError("check: a comparison needs a script before it, whose output it compares with")
        return self


class _Record(BaseModel):
    model_config = ConfigDict(extra="ignore")

    description: str = Field(min_length=1)
    create: _Create = Field(default_factory=_Create)
    start: _Script | None = None
    evaluation: _Evaluation
    example: _Script | None = None  # beside `evaluation` in some tasks, by mistake: of use all the same

    @field_validator("create", mode="before")
    @classmethod
    def _a_list_creates_nothing(cls, value: Any) -> Any:
        return {} if isinstance(value, list) else value  # two tasks have their check there; AgentBench runs none of it


class MissingScript(DataError):
    """A task names a script that is not there."""


def problem_from(record: Mapping[str, Any], *, set_name: str, number: int, scripts: Path | None) -> Problem:
    """Return the problem of a record.

    Args:
        record: as the file has it.
        set_name: the set that it belongs to, which is part of the task's name.
        number: its place in the set, which is too.
        scripts: folder of the scripts that it may name.

    Raises:
        ValidationError: a field is missing or of another type.
        MissingScript: a script that it names is not there.
    """
    read = _Record.model_validate(record)
    evaluation = read.evaluation

    def script(item: _Script) -> Script:
        return Script(language=item.language, source=_source(item, scripts))

    given = evaluation.example or read.example
    example = None if given is None else script(given)
    check: list[Script | Comparison] = []
    for step in evaluation.check:
        if step is None:
            assert example is not None
            check.append(example)
        else:
            check.append(step.comparison() or script(step))
    digest = blake2b(read.model_dump_json().encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
    return Problem(
        task_id=f"agentbench-os-{set_name}-{number}-{digest}",
        query=read.description.strip(),
        set_name=set_name,
        init=tuple(script(item) for item in read.create.init),
        start=None if read.start is None else script(read.start).source,
        match=None if evaluation.match is None else evaluation.match.strip(),
        check=tuple(check),
        example=example,
    )


def read_problems(
    path: Path, *, scripts: Path | None = None, leave_out: bool = False, sha256: str | None = None
) -> list[Problem]:
    """Return the problems of a file, or of a folder of sets, in order.

    Args:
        path: a JSON file, or a folder with a folder of JSON files for every set.
        scripts: folder of the scripts that tasks name; of a folder of sets, it has a folder a set.
        leave_out: leave out tasks whose scripts are not there, and say how many in the log.
        sha256: digest that the file must have.

    Raises:
        DataError: a file cannot be read, has another digest, a record is no task, a script is not there and `leave_out`
            is not set, or nothing is left.
    """
    problems: list[Problem] = []
    missing: list[str] = []
    for set_name, files in _sets(path, sha256=sha256):
        folder = scripts / set_name if scripts is not None and path.is_dir() else scripts
        for number, (where, record) in enumerate(
            entry for file in files for entry in read_records(file, sha256=sha256)
        ):
            try:
                problems.append(problem_from(record, set_name=set_name, number=number, scripts=folder))
            except MissingScript as error:
                missing.append(f"{where}: {error}")
            except ValidationError as error:
                first = error.errors(include_url=False)[0]
                place = ".".join(map(str, first["loc"]))
                raise DataError(f"{where}{', ' + place if place else ''}: {first['msg']}") from error
    if missing and not leave_out:
        more = f", and {len(missing) - NAMED} more" if len(missing) > NAMED else ""
        raise DataError(
            f"{'; '.join(missing[:NAMED])}{more}: name AgentBench's folder scripts, or leave such tasks out by "
            'without_scripts = "leave_out"'
        )
    if missing:
        total = len(missing) + len(problems)
        logger.warning("%s: %d of %d tasks left out: their scripts are not there", path, len(missing), total)
    if not problems:
        raise DataError(f"{path} holds no task")
    return problems


def _sets(path: Path, *, sha256: str | None) -> Iterator[tuple[str, Sequence[Path]]]:
    if not path.is_dir():
        yield path.stem, [path]
        return
    if sha256 is not None:
        raise DataError(f"{path} is a folder: sha256 is the digest of a file")
    for folder in sorted(path.iterdir()):
        files = sorted(file for file in folder.glob("*.json")) if folder.is_dir() else []
        if files:
            yield folder.name, files


def _source(script: _Script, folder: Path | None) -> str:
    if script.code is not None:
        return script.code
    name = script.file or ""
    if folder is None:
        raise MissingScript(f"script {name} is named, and no folder of scripts is")
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        raise DataError(f"script {name} lies outside {folder}")
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise MissingScript(f"script {path} is not there") from None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"script {path} cannot be read: {error}") from error
