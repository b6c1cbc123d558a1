"""A closed vocabulary of whole words, coordinates and pieces of JSON: text = tokens joined by a fixed rule."""

import re
from collections.abc import Sequence

from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Sequence as PreTokenizers
from tokenizers.pre_tokenizers import Split

from midcourse.environments.navigation.guide import ERROR_TYPES
from midcourse.environments.navigation.vocabulary import NANO_NAMES, NANO_NUMBERS, NANO_REGIONS, NANO_WORDS

PAD, UNKNOWN = "<pad>", "<unk>"
USER, ASSISTANT, TOOL, END = "<|user|>", "<|assistant|>", "<|tool|>", "<|end|>"
THINK, THINK_END = "<think>", "</think>"
DRAFT, EVIDENCE, FEEDBACK, CORRECTED = "<|draft|>", "<|evidence|>", "<|feedback|>", "<|corrected|>"
REVEAL = "<|reveal|>"
ROLES = {role: f"<|{role}|>" for role in ("validator", "corrector", "verifier")}
CHECK = "check"
"""A query that begins with this word asks for what the policy can do and does not do by habit: searching again."""

SPECIALS = (
    *(PAD, UNKNOWN, USER, ASSISTANT, TOOL, END, THINK, THINK_END, DRAFT, EVIDENCE, FEEDBACK, CORRECTED, REVEAL),
    *ROLES.values(),
)
SIGNS = (";", "@", ">", "=", "~", "?")
JSON_PIECES = (
    '{"diagnosis":"',
    '","is_valid":',
    "true",
    "false",
    ',"error_types":[',
    '],"suggest_next":"',
    '"}',
    '{"reasoning":"',
    '","tool_calls":[',
    '{"name":"poi_search","arguments":{"address":"',
    '{"name":"direction","arguments":{"origin":"',
    '","region":"',
    '","waypoints":["',
    '"],"destination":"',
    '","destination":"',
    '","',
    '"}}',
    ",",
    '],"content":""}',
    '","ok":',
    ',"reasons":[',
    "]}",
    '"',
    "leak",
    "wrong_arguments",
    "unreasonable",
)
LONGITUDES = tuple(f"{number}," for number in NANO_NUMBERS)

VOCABULARY = tuple(
    dict.fromkeys(
        (
            *SPECIALS,
            *NANO_WORDS,
            CHECK,
            *NANO_NAMES,
            *NANO_REGIONS,
            *LONGITUDES,
            *NANO_NUMBERS,
            *SIGNS,
            *ERROR_TYPES,
            *JSON_PIECES,
        )
    )
)


class NanoTokenizer:
    """Words <-> ids. Between two tokens that touch with letters or digits stands a space, elsewhere none."""

    def __init__(self) -> None:
        self.ids = {token: index for index, token in enumerate(VOCABULARY)}
        self._tokenizer = Tokenizer(WordLevel(self.ids, unk_token=UNKNOWN))
        longest_first = "|".join(re.escape(token) for token in sorted(VOCABULARY, key=len, reverse=True))
        self._tokenizer.pre_tokenizer = PreTokenizers(
            [Split(Regex(longest_first), "isolated"), Split(Regex(r"\s+"), "removed")]
        )

    def encode(self, text: str) -> list[int]:
        """Return ids; what the vocabulary does not hold becomes the unknown token."""
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text. `encode(decode(ids)) == ids` for every sequence without two JSON pieces that would merge."""
        text = ""
        for token_id in token_ids:
            token = VOCABULARY[token_id]
            spaced = text[-1:].isalnum() and token[0].isalnum()
            text += f" {token}" if spaced else token
        return text
