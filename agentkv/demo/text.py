"""The text that the demo's prompts are made of, and a way to cut any number of tokens from it.

What: the shipped recording of a coding agent, and `FillText`, which fills a trace's token counts.
Why real text: a tokenizer trained on it gives prompts as long, in tokens, as real ones.
Where: read first; the tokenizer is trained on it, the workload takes its messages from it.
"""

import gzip
import json
import random
from dataclasses import dataclass
from importlib import resources

from tokenizers import Encoding, Tokenizer


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    """What the agent added to its prompt in one turn, and the recorded answer of the model."""

    added: str
    answer: str


@dataclass(frozen=True, slots=True)
class RecordedSession:
    """One recorded run of the agent; the prompt of a turn is everything up to it."""

    session_id: str
    turns: tuple[RecordedTurn, ...]


def recorded_sessions() -> list[RecordedSession]:
    """The sessions shipped with the package, in file order."""
    packed = (
        resources.files("agentkv.demo").joinpath("data/mini_swe_sessions.jsonl.gz").read_bytes()
    )
    rows = (json.loads(line) for line in gzip.decompress(packed).decode("utf-8").splitlines())
    return [
        RecordedSession(
            session_id=row["session_id"][:8],
            turns=tuple(
                RecordedTurn(added=_content(turn["input_delta"]), answer=_content(turn["output"]))
                for turn in row["turns"]
            ),
        )
        for row in rows
    ]


def training_texts(sessions: list[RecordedSession]) -> list[str]:
    """Every text of the sessions, for the tokenizer."""
    return [
        text for session in sessions for turn in session.turns for text in (turn.added, turn.answer)
    ]


class FillText:
    """Cuts pieces of a wanted token count out of the shipped text, the same for the same key."""

    def __init__(self, tokenizer: Tokenizer, texts: list[str]) -> None:
        self._tokenizer = tokenizer
        self._text = "\n".join(texts)
        self._offsets: list[tuple[int, int]] = list(tokenizer.encode(self._text).offsets)

    def cut(self, num_tokens: int, key: str) -> str:
        """About `num_tokens` tokens from a place that depends on `key` alone.

        A piece of `n` tokens is a prefix of the piece of `m > n` tokens with the same key.
        """
        start = random.Random(key).randrange(len(self._offsets))
        pieces: list[str] = []
        while num_tokens > 0:
            end = min(start + num_tokens, len(self._offsets))
            pieces.append(self._text[self._offsets[start][0] : self._offsets[end - 1][1]])
            num_tokens -= end - start
            start = 0
        return _content("".join(pieces))

    def head(self, text: str, num_tokens: int) -> str:
        """The first `num_tokens` tokens of `text`; all of it when it is shorter."""
        encoding: Encoding = self._tokenizer.encode(text)
        if len(encoding.ids) <= num_tokens:
            return text
        return _content(text[: encoding.offsets[num_tokens - 1][1]])


def _content(text: str) -> str:
    # White space at the edges could merge with the template's line ends into other tokens, and then
    # the prompt of a turn would no longer be a prefix of the next one.
    return text.strip() or "(no output)"
