"""A closed vocabulary of whole words, coordinates and pieces of JSON: text = tokens joined by a fixed rule."""

from collections.abc import Sequence

from midcourse.environments.navigation.guide import ERROR_TYPES
from midcourse.environments.navigation.vocabulary import NANO_NAMES, NANO_NUMBERS, NANO_REGIONS, NANO_WORDS
from midcourse.nano.tokenizer import PAD, UNKNOWN, ClosedTokenizer, spaced

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


class NanoTokenizer(ClosedTokenizer):
    """Words <-> ids. Between two tokens that touch with letters or digits stands a space, elsewhere none."""

    def __init__(self) -> None:
        super().__init__(VOCABULARY, marks=SPECIALS)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text. `encode(decode(ids)) == ids` for every sequence without two JSON pieces that would merge."""
        return spaced(self.vocabulary[token_id] for token_id in token_ids)
