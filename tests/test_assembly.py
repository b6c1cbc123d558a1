"""What is checked when the parts of a run are put together."""

import asyncio
import json
import logging

import pytest

from midcourse.assembly import assembled
from midcourse.config import load_config
from midcourse.errors import ConfigError

KNOWN = {"problem": "047+138*7", "answer": "1013"}
FOREIGN = {"problem": "What is the sum of 1 and 2?", "answer": "3"}


def assemble(path, *problems, policy=("nano-arithmetic", "digits")):
    path.write_text("".join(json.dumps(problem) + "\n" for problem in problems))
    settings = [
        "method.name=grpo",
        "environment.name=mathematics",
        f'environment.files=["test={path}"]',
        f"policy.path={policy[0]}",
        f"policy.chat={policy[1]}",
        "rollout.max_turn_tokens=8",
    ]

    async def build():
        async with assembled(load_config(None, settings)):
            pass

    asyncio.run(build())


def test_a_built_in_policy_does_not_begin_on_a_world_whose_words_it_does_not_know(tmp_path):
    # What is the sum of 1 and 2? : six words and the question mark, of nine tokens.
    expected = (
        r"policy\.chat = 'digits': this policy does not know 77\.8% of the words in queries of "
        r"environment\.name = 'mathematics': expected environment\.name = 'arithmetic', or another policy\.path"
    )
    with pytest.raises(ConfigError, match=expected):
        assemble(tmp_path / "test.jsonl", FOREIGN)


def test_few_unknown_words_are_told_with_their_share(tmp_path, caplog):
    problem = {"problem": f"{'1+' * 24}1x", "answer": "25"}  # one of 50 tokens
    with caplog.at_level(logging.WARNING):
        assemble(tmp_path / "test.jsonl", problem)
    assert "does not know 2.0% of the words" in caplog.text


def test_nothing_is_told_where_every_word_is_known(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        assemble(tmp_path / "test.jsonl", KNOWN)
    assert caplog.text == ""
