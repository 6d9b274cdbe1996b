"""Makes text from outside safe for a terminal, and a terminal that knows few letters no error.

Why: session ids and tools are named by users. A name must not move the cursor, colour the screen,
set the window's title or turn the reading direction around. Where: what `top` and `explain` show
of a server goes through here first; rich's markup is never read in it.
"""

from __future__ import annotations

import codecs
import io
import re
import sys
from typing import Any

# ESC [ … letter, ESC ] … BEL, and the rest of what begins with ESC; C1 forms of them too.
_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]?"
)
# What tables, bars and curves are drawn with, and letters like it that all terminals have.
_PLAIN = dict(zip("█▇▆▅▄▃▂▁▒░─│·…→←↑↓≤≥“”±μ", '##**++--=.-|-.><^v<>""~u', strict=True))
_SPACES = re.compile(r"[\t\n\v\f\r\u2028\u2029]+")


def clean(text: str) -> str:
    """Without escape sequences and control characters; line breaks and tabs become a space."""
    if text.isascii() and text.isprintable():
        return text
    text = _SPACES.sub(" ", _ESCAPES.sub("", text))
    return "".join(letter for letter in text if letter.isprintable() or letter == " ")


def clean_all(value: Any) -> Any:
    """The same of all strings in a JSON value, keys of objects too."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {clean(str(key)): clean_all(each) for key, each in value.items()}
    if isinstance(value, list):
        return [clean_all(each) for each in value]
    return value


def let_output_degrade() -> None:
    """Letters that the standard output cannot write are replaced, each by one; no error of it.

    For terminals and files that are not Unicode, such as with `PYTHONIOENCODING=latin-1`.
    """
    codecs.register_error("agentkv", _plain)
    out = sys.stdout
    if isinstance(out, io.TextIOWrapper):
        out.reconfigure(errors="agentkv")


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    letters = error.object[error.start : error.end]
    return "".join(_PLAIN.get(letter, "?") for letter in letters), error.end
