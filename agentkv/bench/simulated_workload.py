"""The workload of a replay once more, from its JSON file, as scripts for the simulator.

What: settings and seeds of the file, its traces (whose content must be what it was), the tokenizer
made anew, and of every prompt the chained hashes of its full blocks, as vLLM makes them: what is
the same there is the same here, token by token.
Where: `simulated` plays the scripts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from agentkv.bench.replay_models import MODELS
from agentkv.bench.replay_play import WARM_UP_ANSWER, warm_up_messages
from agentkv.bench.replay_settings import ReplaySettings
from agentkv.bench.replay_workloads import WorkloadMaker, content_hash
from agentkv.demo import workload as played
from agentkv.demo.checkpoint import train_tokenizer
from agentkv.demo.text import recorded_sessions, training_texts
from agentkv.errors import ConfigError
from agentkv.sim.scripted import Script
from agentkv.sim.trace import TraceTurn
from agentkv.sim.workload import PlannedSession, PlannedTurn

_HASH_BYTES = 16


def settings_of(value: Mapping[str, Any]) -> ReplaySettings:
    """What the replay was played with. Raises ConfigError where a trace is another by now."""
    saved = value["provenance"]["settings"]
    known = {name for name in ReplaySettings.__dataclass_fields__ if name in saved}
    fields = {name: saved[name] for name in known - {"systems"}}
    for name in ("oversubscription", "dram", "server_args"):
        fields[name] = tuple(fields[name])
    fields["traces"] = tuple(Path(path) for path in saved["traces"])
    hashes = value["provenance"].get("traces")
    if hashes is None:
        raise ConfigError(
            "REPLAY: an older agentkv wrote it, without its traces' content; replay again"
        )
    for path in fields["traces"]:
        _check_trace(path, hashes[str(path)])
    return ReplaySettings(systems=(), **fields)


def _check_trace(path: Path, expected: str) -> None:
    try:
        found = content_hash(path)
    except OSError as error:
        raise ConfigError(
            f"{path}: the replay's trace cannot be read ({error.strerror}); put it back there"
        ) from None
    if found != expected:
        raise ConfigError(
            f"{path}: not the trace that was replayed (SHA-256 {found[:12]}, then "
            f"{expected[:12]}); put that one back, or replay again"
        )


def workload_maker(settings: ReplaySettings) -> WorkloadMaker:
    """Makes workloads with the tokenizer of the replay's model."""
    shape = MODELS.get(settings.model)
    if shape is None:
        file = Path(settings.model) / "tokenizer.json"
        if not file.is_file():
            raise ConfigError(f"{file}: the replay's tokenizer is not there; put the model back")
        return WorkloadMaker.of(settings, Tokenizer.from_file(str(file)))
    texts = training_texts(recorded_sessions())
    return WorkloadMaker.of(settings, train_tokenizer(texts, vocab_size=shape.vocab_size))


def scripts_of(maker: WorkloadMaker, workload: played.Workload) -> list[Script]:
    """The sessions in the order in which agents take them."""
    settings = maker.settings
    return [
        Script(
            PlannedSession(session.session_id, "", tuple(_planned(session, settings))),
            tuple(
                tuple(block_hashes(maker.counter.ids(turn.messages), settings.block_size))
                for turn in session.turns
            ),
        )
        for session in workload.sessions
    ]


def warm_up_scripts(maker: WorkloadMaker, key: str) -> list[Script]:
    """What a server is sent before a replay; nobody comes back to it."""
    size = maker.settings.block_size
    scripts = []
    for number, message in enumerate(warm_up_messages(maker.fill, key)):
        ids = maker.counter.ids([message])
        turn = played.PlannedTurn((message,), len(ids), 0)
        planned = _planned_turn(turn, 0, WARM_UP_ANSWER, size)
        plan = PlannedSession(f"warm-up-{number}", "", (planned,))
        scripts.append(Script(plan, (tuple(block_hashes(ids, size)),)))
    return scripts


def block_hashes(token_ids: Sequence[int], block_size: int) -> Iterator[bytes]:
    """Of every full block, chained: equal where all tokens up to its end are."""
    parent = b""
    for start in range(0, len(token_ids) - block_size + 1, block_size):
        block = ",".join(map(str, token_ids[start : start + block_size]))
        parent = hashlib.blake2b(parent + block.encode(), digest_size=_HASH_BYTES).digest()
        yield parent


def _planned(session: played.PlannedSession, settings: ReplaySettings) -> Iterator[PlannedTurn]:
    for number, turn in enumerate(session.turns):
        yield _planned_turn(turn, number, settings.answer_tokens, settings.block_size)


def _planned_turn(
    turn: played.PlannedTurn, number: int, answer_tokens: int, block_size: int
) -> PlannedTurn:
    total = turn.prompt_tokens + answer_tokens
    return PlannedTurn(
        turn=TraceTurn(
            prompt_tokens=turn.prompt_tokens,
            output_tokens=answer_tokens,
            wait_s=turn.wait_s,
            tool=turn.tool,
            command=turn.command,
            timeout_s=turn.timeout_s,
        ),
        num_base=0,
        num_shared=0,
        num_known=turn.known_tokens // block_size if number else 0,
        num_prompt=turn.prompt_tokens // block_size,
        num_full=(total - 1) // block_size,
        num_total=-(-total // block_size),
    )
