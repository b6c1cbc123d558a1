"""Plays a request as a careful or a careless worker would: what it guesses and what it looks up is its caller's."""

from collections.abc import Callable, Sequence

from midcourse.environments.table_world.requests import Request, Slot
from midcourse.environments.table_world.schemas import KEY
from midcourse.environments.table_world.statements import (
    ORDERS,
    addition,
    change,
    columns_of,
    extreme,
    first_values,
    look_up,
    only_value,
    removal,
    value_of,
)

CLOSING_WORDS = ("done", "ready", "changed", "finished")
"""Answers after a change: any text will do."""


def play(
    request: Request,
    *,
    run: Callable[[str], str],
    answer: Callable[[str], None],
    looks_up: Callable[[], bool],
    choose: Callable[[Sequence[str]], str],
) -> None:
    """Solve a request, one statement a turn, each right before it is needed.

    A word that is not looked up is guessed: it then stands for any of the tables, or of the columns that were listed.
    Nothing tells that a guess was wrong, and all that follows is built on it.

    Args:
        request: what is asked.
        run: runs a statement and returns what the database answers.
        answer: gives the final answer.
        looks_up: asked at every word that is no name: whether the guide is asked what it stands for.
        choose: picks one of several: a guess, or one of the ways that lead to the same.
    """

    def meant(slot: Slot, candidates: Sequence[str]) -> str:
        if slot.word is None:
            return slot.name
        if looks_up():
            return only_value(first_values(run(look_up(slot.word))))
        return choose(candidates)

    table = meant(request.table, request.schema.tables)
    listed = first_values(run(columns_of(table, order=choose(ORDERS))))
    columns = [column for column in listed if column != KEY]
    first = meant(request.first, columns)
    if request.kind in ("best", "remove"):
        found = only_value(first_values(run(extreme(table, first, most=request.kind == "best"))))
    else:
        found = only_value(first_values(run(value_of(table, first, request.name))))
    if request.kind == "value":
        return answer(found)
    if request.second is None:
        run(removal(table, found) if request.kind == "remove" else addition(table, first, request.other, found))
        return answer(choose(CLOSING_WORDS))
    second = meant(request.second, [column for column in columns if column != first])
    if request.kind == "best":
        return answer(only_value(first_values(run(value_of(table, second, found)))))
    run(change(table, second, request.other, found))
    return answer(choose(CLOSING_WORDS))
