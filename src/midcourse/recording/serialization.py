"""Groups and trajectories <-> plain values that JSON can hold, every float bit for bit.

The shape follows the annotations of the data classes in types.py: a mapping from field name to value, enums by value,
sequences as lists, floats that JSON has no word for as "inf", "-inf" or "nan". Writers of tokens are stored as runs,
[["prompt", 40], ["policy", 12]], since they hardly change. Sequences come back as tuples.
"""

import dataclasses
import itertools
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from functools import cache
from typing import Any

from midcourse.errors import RunFolderError
from midcourse.types import BranchRecord, Group, InterventionRecord, TokenSource, Trajectory, Turn

SCHEMA_VERSION = 1
"""Raised when a stored field changes its meaning or goes away; a field that is only added keeps it."""

Codec = Callable[[Any], Any]


def group_to_dict(group: Group) -> dict[str, Any]:
    """Return a group as plain values, its schema version included."""
    return {"schema_version": SCHEMA_VERSION, **_encoder(Group)(group)}


def group_from_dict(values: Mapping[str, Any]) -> Group:
    """Return the group that `group_to_dict` was given.

    Raises:
        RunFolderError: another schema version; a field that is unknown, missing or of the wrong kind.
    """
    check_schema_version(values, "group")
    return _decode(Group, {key: value for key, value in values.items() if key != "schema_version"})


def trajectory_to_dict(trajectory: Trajectory) -> dict[str, Any]:
    """Return a trajectory as plain values, its schema version included."""
    return {"schema_version": SCHEMA_VERSION, **_encoder(Trajectory)(trajectory)}


def trajectory_from_dict(values: Mapping[str, Any]) -> Trajectory:
    """Return the trajectory that `trajectory_to_dict` was given. Raises as `group_from_dict`."""
    check_schema_version(values, "trajectory")
    return _decode(Trajectory, {key: value for key, value in values.items() if key != "schema_version"})


def turn_to_dict(turn: Turn) -> dict[str, Any]:
    """Return a turn as plain values; part of a trajectory, so without a schema version."""
    return _encoder(Turn)(turn)


def turn_from_dict(values: Mapping[str, Any]) -> Turn:
    """Return the turn that `turn_to_dict` was given. Raises RunFolderError as `group_from_dict`."""
    return _decode(Turn, values)


def intervention_to_dict(record: InterventionRecord) -> dict[str, Any]:
    """Return an intervention record as plain values."""
    return _encoder(InterventionRecord)(record)


def branch_to_dict(record: BranchRecord) -> dict[str, Any]:
    """Return a branch as plain values, without the hidden state: part of a group, so without a schema version."""
    return _encoder(BranchRecord)(dataclasses.replace(record, hidden=()))


def branch_from_dict(values: Mapping[str, Any]) -> BranchRecord:
    """Return the branch that `branch_to_dict` was given. Raises RunFolderError as `group_from_dict`."""
    return _decode(BranchRecord, values)


def check_schema_version(values: Mapping[str, Any], what: str) -> None:
    """Raise RunFolderError unless `values` were written under the schema version that is read here."""
    version = values.get("schema_version")
    if version != SCHEMA_VERSION:
        raise RunFolderError(
            f"a stored {what} must have schema version {SCHEMA_VERSION}: got {version!r}; "
            "it was written by another version of midcourse"
        )


def _decode(kind: type, values: Any) -> Any:
    try:
        return _decoder(kind)(values)
    except RunFolderError:
        raise
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise RunFolderError(f"a stored {kind.__name__} cannot be read: {error}") from error


def encode_float(value: float) -> float | str:
    """Return a float as JSON can hold it: itself where finite, else "inf", "-inf" or "nan"."""
    number = float(value)
    return number if math.isfinite(number) else repr(number)


def _decode_float(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError(f"a number must stand here: got {value!r}")
    return float(value)


def _decode_exactly(kind: type) -> Codec:
    def decode(value: Any) -> Any:
        if type(value) is not kind:
            raise TypeError(f"a {kind.__name__} must stand here: got {value!r}")
        return value

    return decode


def _encode_runs(sources: Sequence[TokenSource]) -> list[list[Any]]:
    return [[source.value, sum(1 for _ in run)] for source, run in itertools.groupby(sources)]


def _decode_runs(runs: Any) -> tuple[TokenSource, ...]:
    return tuple(source for name, length in runs for source in itertools.repeat(TokenSource(name), length))


def plain_values(value: Any) -> Any:
    """Return free-form values with plain containers, as JSON can hold them; what it has no form for becomes text."""
    if isinstance(value, Mapping):
        return {str(key): plain_values(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_values(item) for item in value]
    if isinstance(value, float):
        return encode_float(value)
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def _same(value: Any) -> Any:
    return value


@cache
def _codec(hint: Any) -> tuple[Codec, Codec]:
    """Return (encode, decode) for one annotation."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return plain_values, _same
    if hint is float:
        return encode_float, _decode_float
    if hint in (int, str, bool):
        return hint, _decode_exactly(hint)
    if hint == Sequence[TokenSource]:
        return _encode_runs, _decode_runs
    if origin in (types.UnionType, typing.Union):
        return _optional_codec(hint, arguments)
    if origin is Sequence:
        encode, decode = _codec(arguments[0])
        return (lambda items: [encode(item) for item in items]), (lambda items: tuple(decode(item) for item in items))
    if origin is Mapping:
        encode, decode = _codec(arguments[1])
        return (
            lambda items: {key: encode(item) for key, item in items.items()},
            lambda items: {key: decode(item) for key, item in items.items()},
        )
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return (lambda item: item.value), hint
    if dataclasses.is_dataclass(hint):
        return _dataclass_codec(hint)
    raise TypeError(f"no stored form for the annotation {hint}")


def _optional_codec(hint: Any, arguments: tuple[Any, ...]) -> tuple[Codec, Codec]:
    present = [argument for argument in arguments if argument is not type(None)]
    if len(present) != 1:
        raise TypeError(f"no stored form for the annotation {hint}")
    encode, decode = _codec(present[0])
    return (
        lambda item: None if item is None else encode(item),
        lambda item: None if item is None else decode(item),
    )


def _dataclass_codec(kind: Any) -> tuple[Codec, Codec]:
    hints = typing.get_type_hints(kind)
    codecs = {field.name: _codec(hints[field.name]) for field in dataclasses.fields(kind)}

    def encode(item: Any) -> dict[str, Any]:
        return {name: codec[0](getattr(item, name)) for name, codec in codecs.items()}

    def decode(values: Any) -> Any:
        unknown = set(values) - set(codecs)
        if unknown:
            raise RunFolderError(f"a stored {kind.__name__} has the unknown fields {sorted(unknown)}")
        return kind(**{name: codecs[name][1](value) for name, value in values.items()})

    return encode, decode


def _encoder(kind: type) -> Codec:
    return _codec(kind)[0]


def _decoder(kind: type) -> Codec:
    return _codec(kind)[1]
