"""Where in a turn the answer stands."""

import re
from typing import Literal

AnswerPolicy = Literal["block_or_text", "block", "text"]
FENCE = re.compile(r"^ {0,3}(?P<fence>`{3,}|~{3,})(?P<label>[^\n]*)$", re.MULTILINE)


def answer_source(text: str, policy: AnswerPolicy) -> str | None:
    """Return the code of a turn, None where the policy finds none.

    block: the last fenced code block, whatever its label; one that is never closed runs to the end.
    block_or_text: the same, and the whole text where there is no block.
    text: the whole text.
    """
    if policy == "text":
        return text
    block = last_block(text)
    return text if block is None and policy == "block_or_text" else block


def last_block(text: str) -> str | None:
    """Return what the last fenced code block holds, None where there is none."""
    block, opened = None, None
    for line in FENCE.finditer(text):
        fence = line["fence"]
        if opened is None:
            if "`" not in line["label"]:
                opened = line
                block = text[line.end() + 1 :]
        elif fence[0] == opened["fence"][0] and len(fence) >= len(opened["fence"]) and not line["label"].strip():
            block = text[opened.end() + 1 : line.start()]
            opened = None
    return block
