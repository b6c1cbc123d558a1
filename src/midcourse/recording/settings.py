"""The settings that a run was made with, kept beside what came of them: other settings must not be mixed into it."""

from collections.abc import Mapping
from pathlib import Path

from midcourse.errors import OccupiedError

MAX_NAMED = 8


def check_same_settings(before: Mapping[str, str], now: Mapping[str, str], *, place: Path) -> None:
    """Check that what stands at `place` was made with these settings.

    A setting that only one side knows is one that another version of midcourse has, and is not compared.

    Args:
        before: key -> value, as TOML writes it, of what is there.
        now: the same of the run that would go on with it.
        place: of what is there, for the message.

    Raises:
        OccupiedError: some differ; the message names key and both values of up to MAX_NAMED.
    """
    differing = [key for key in before if key in now and before[key] != now[key]]
    if differing:
        named = [f"{key} = {before[key]}, now {now[key]}" for key in differing[:MAX_NAMED]]
        more = [f"{len(differing) - MAX_NAMED} more"] if len(differing) > MAX_NAMED else []
        raise OccupiedError(
            f"{place} was made with other settings, which must not change: {'; '.join([*named, *more])}. A run with "
            "other settings needs a folder of its own; it can begin from a checkpoint (policy.path = .../step_N/model)"
        )
