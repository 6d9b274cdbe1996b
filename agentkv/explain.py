"""From a ledger's records to the story of each pause: predicted, decided, returned, regretted.

What: groups the records of one session by pause. Why apart from `ledger`: it reads what any engine
wrote, in a file or over HTTP, perhaps cut off at either end, and must cope with what is missing.
Where: `agentkv explain`; shown by `cli.explain_report`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Record = Mapping[str, Any]


@dataclass(slots=True)
class PauseStory:
    """One pause; `began_at_s` is wall time.

    `decisions`: records `pause` and `redecide`, oldest first, empty where the ledger begins later;
    `resume` is None while the turn is not back, `end_at_s` is when the session ended instead.
    """

    scope: str
    pause_id: Any
    began_at_s: float
    decisions: list[Record] = field(default_factory=list)
    parks: list[Record] = field(default_factory=list)
    resume: Record | None = None
    end_at_s: float | None = None

    @property
    def regret_s(self) -> float | None:
        """None while it is open, and where the engine had forgotten what it decided."""
        return None if self.resume is None else self.resume.get("regret_s")

    @property
    def decided(self) -> Record | None:
        """The decision whose costs are told: the last one, which was in force when it ended."""
        return self.decisions[-1] if self.decisions else None

    def events(self) -> list[Record]:
        """Decisions and parks in the order in which they came."""
        return sorted([*self.decisions, *self.parks], key=lambda record: record.get("t", 0.0))


def pause_stories(records: Iterable[Record]) -> list[PauseStory]:
    """The pauses of one session, oldest first. Records of other kinds are passed over.

    An id may come again: a restarted engine counts from 1. A record `pause` begins a new story.
    """
    stories: list[PauseStory] = []
    open_stories: dict[Any, PauseStory] = {}
    for record in records:
        kind, pause_id = record.get("kind"), record.get("pause_id")
        if kind == "end":
            _end(open_stories, record)
            continue
        if kind not in ("pause", "redecide", "park", "resume"):
            continue
        story = open_stories.get(pause_id)
        if story is None or kind == "pause":
            story = open_stories[pause_id] = _begin(record)
            stories.append(story)
        if kind == "park":
            story.parks.append(record)
        elif kind == "resume":
            story.resume = record
            del open_stories[pause_id]
        else:
            story.decisions.append(record)
    return stories


def story_value(story: PauseStory) -> dict[str, Any]:
    """For JSON: the records as they are, grouped."""
    return {
        "pause_id": story.pause_id,
        "began_at_s": story.began_at_s,
        "decisions": [dict(record) for record in story.decisions],
        "parks": [dict(record) for record in story.parks],
        "resume": None if story.resume is None else dict(story.resume),
        "end_at_s": story.end_at_s,
        "regret_s": story.regret_s,
    }


def explain_value(session: str, stories: Sequence[PauseStory]) -> dict[str, Any]:
    """All of it, for JSON."""
    return {
        "session_id": session,
        "regret_s": sum(story.regret_s or 0.0 for story in stories),
        "pauses": [story_value(story) for story in stories],
    }


def _begin(record: Record) -> PauseStory:
    """The pause began `age_s` or, seen from its end, `wait_s` before its first record here."""
    before_s = record.get("age_s") or record.get("wait_s") or 0.0
    return PauseStory(
        scope=record.get("scope", ""),
        pause_id=record.get("pause_id"),
        began_at_s=record.get("t", 0.0) - before_s,
    )


def _end(open_stories: dict[Any, PauseStory], record: Record) -> None:
    """An ended session leaves no pause open.

    Where sessions of several tenants have this name and the record does not say whose ended, none
    is taken to have.
    """
    scopes = {story.scope for story in open_stories.values()}
    if len(scopes) > 1:
        scopes &= {record.get("scope")}
    for pause_id, story in list(open_stories.items()):
        if story.scope in scopes:
            story.end_at_s = record.get("t")
            del open_stories[pause_id]
