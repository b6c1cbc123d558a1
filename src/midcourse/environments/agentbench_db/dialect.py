"""What of MySQL's ways SQLite can be taught: escapes in strings, names that begin with a digit, how text compares.

Not taught: numbers in text compared with numbers (`Points > 16` compares text in SQLite), MySQL's functions, `||`.
"""

import re
import unicodedata

COLLATION = "MYSQL_TEXT"
ESCAPES = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": "\\%", "_": "\\_"}

_TOKEN = re.compile(
    r"""
    (?P<string>  '(?:[^'\\]|\\.|'')*+' | "(?:[^"\\]|\\.|"")*+" )
  | (?P<other>   `[^`]*+` | \[[^\]]*+\] | --[^\n]*+ | /\*.*?\*/ | [^\W\d][\w$]*+ )
  | (?P<number>  0[xX][0-9a-fA-F]++(?![\w$]) | \d++(?:\.\d*+)?+(?:[eE][+-]?\d++)?+(?![\w$]) )
  | (?P<name>    \d[\w$]*+ )
    """,
    re.VERBOSE | re.DOTALL,
)


def to_sqlite(statement: str) -> str:
    r"""Return a statement whose strings and names MySQL would read, as SQLite reads the same.

    Example: UPDATE 1952_race SET note = 'it\'s\nlate' becomes UPDATE `1952_race` SET note = 'it''s
    late'.
    """

    def replaced(match: re.Match[str]) -> str:
        text = match.group()
        if match.lastgroup == "string" and "\\" in text:
            quote, inner = text[0], text[1:-1].replace(text[0] * 2, text[0])
            return quote + _unescaped(inner).replace(quote, quote * 2) + quote
        if match.lastgroup == "name":
            return f"`{text}`"
        return text

    return _TOKEN.sub(replaced, statement)


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", lambda match: ESCAPES.get(match[1], match[1]), text, flags=re.DOTALL)


def compare_text(left: str, right: str) -> int:
    """Return -1, 0 or 1 as MySQL's case- and accent-insensitive collations order two texts; trailing spaces are none.

    Approximates them: equality is that of letters without accents in one case, order that of code points.
    """
    if left == right:
        return 0
    first, second = _key(left), _key(right)
    return (first > second) - (first < second)


def _key(text: str) -> str:
    plain = text.rstrip(" ")
    if not plain.isascii():
        decomposed = unicodedata.normalize("NFKD", plain)
        plain = "".join(character for character in decomposed if not unicodedata.combining(character))
    return plain.casefold()
