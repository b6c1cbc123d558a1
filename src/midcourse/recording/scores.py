"""The form of a line of evaluations.jsonl, as far as reports rely on it: `EvaluationResult` in plain values."""

from collections.abc import Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from midcourse.errors import RunFolderError

STRICT = ConfigDict(strict=True, allow_inf_nan=False)


class StoredEstimate(BaseModel):
    """A share with its interval; None where nothing was scored."""

    model_config = STRICT

    value: float | None
    low: float | None
    high: float | None


class StoredSheet(BaseModel):
    """pass@k and pass^k for every k from 1 to the number of attempts."""

    model_config = STRICT

    pass_at: dict[str, StoredEstimate]
    pass_hat: dict[str, StoredEstimate]

    @model_validator(mode="after")
    def _has_every_k(self) -> Self:
        expected = {str(k) for k in range(1, len(self.pass_at) + 1)}
        if not expected or not self.pass_at.keys() == self.pass_hat.keys() == expected:
            raise ValueError(f"pass_at and pass_hat must be for k from 1 up: got {[*self.pass_at]}, {[*self.pass_hat]}")
        return self


class StoredEvaluation(BaseModel):
    """The scores after an update, by split and by tag."""

    model_config = STRICT

    splits: dict[str, StoredSheet]
    tags: dict[str, StoredSheet] = Field(default_factory=dict)


def check_evaluation(values: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Return `values` as they are, if they are an evaluation.

    Args:
        values: an object of evaluations.jsonl.
        place: file and line, for the message.

    Raises:
        RunFolderError: scores are missing or of another kind; the message names place and key.
    """
    try:
        StoredEvaluation.model_validate(values)
    except ValidationError as error:
        detail = error.errors(include_url=False)[0]
        key = ".".join(map(str, detail["loc"]))
        raise RunFolderError(f"{place}, {key}: {detail['msg'].removeprefix('Value error, ')}") from error
    return dict(values)
