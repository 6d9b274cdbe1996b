"""What the parts of the endpoint share, one object per app.

Where: made by `plugin`; `link` is there once the engine is known, and never on a server that runs
without agentkv's connector: then nothing is watched and every event is answered `unsupported`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from .activity import Activity
from .counters import Counters
from .engine_link import EngineLink
from .last_answers import LastAnswers
from .ownership import MAX_REPLIES, MAX_SESSIONS, Callers, Claims
from .tiers import Tiers


@dataclass(slots=True)
class Endpoint:
    """Owned by the event loop of the API process.

    `sessions` and `replies` hold claims only where somebody asks for them: see `keeps_claims`.
    `started_s`: Unix seconds, tells watchers of a restart.
    """

    callers: Callers
    sessions: Claims = field(default_factory=lambda: Claims(MAX_SESSIONS))
    replies: Claims = field(default_factory=lambda: Claims(MAX_REPLIES))
    counters: Counters = field(default_factory=Counters)
    activity: Activity = field(default_factory=Activity)
    last: LastAnswers = field(default_factory=LastAnswers)
    tiers: Tiers = field(default_factory=lambda: Tiers({}))
    started_s: float = field(default_factory=time.time)
    link: EngineLink | None = None

    @property
    def keeps_claims(self) -> bool:
        """Whether it matters who owns a session (keys) or where it lives (data parallelism)."""
        has_engines = self.link is not None and self.link.engines.num_ranks > 1
        return self.callers.are_told_apart or has_engines
