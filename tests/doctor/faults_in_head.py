"""Faults in what stands before the conversation: system prompt, tools, settings, hints."""

from __future__ import annotations

import random
import uuid
from typing import Any

from tests.doctor.builders import Agent, Body, named, words
from tests.doctor.planting import NUM_TURNS, each_body, each_head

# --- the head ---


def billing_line(seed: int) -> list[Body]:
    """A90, as a gateway leaves it that joins the blocks: not at the beginning, where vLLM cuts."""

    def change(text: str, turn: int, random_: random.Random) -> str:
        line = f"x-anthropic-billing-header: cc_version=2.1; cch={random_.getrandbits(20):05x};"
        return text.replace("\n", f"\n{line}\n", 1)

    return each_head(seed, change)


def clock(seed: int) -> list[Body]:
    return each_head(seed, lambda text, turn, _: f"Now: 2026-03-04 10:{turn:02}:17\n{text}")


def request_uuid(seed: int) -> list[Body]:
    def change(text: str, turn: int, random_: random.Random) -> str:
        return f"Request {uuid.UUID(int=random_.getrandbits(128))}\n{text}"

    return each_head(seed, change)


def working_directory(seed: int) -> list[Body]:
    def change(text: str, turn: int, random_: random.Random) -> str:
        return text.replace(
            "\n", f"\ncwd: /home/dev/{random_.choice(['api', 'web', 'ops'])}{turn}/src\n", 1
        )

    return each_head(seed, change)


def hoisted_notes(seed: int) -> list[Body]:
    """A91: each turn's note is merged into the head."""
    notes = [words(random.Random(f"{seed}.{i}"), 10) for i in range(NUM_TURNS)]
    return each_head(seed, lambda text, turn, _: "\n".join([text, *notes[:turn]]))


def hoisted_between(seed: int) -> list[Body]:
    """The same, with the notes under a heading in the middle."""
    notes = [words(random.Random(f"{seed}.{i}"), 10) for i in range(NUM_TURNS)]

    def change(text: str, turn: int, _: random.Random) -> str:
        lines = text.split("\n")
        return "\n".join([*lines[:5], *notes[:turn], *lines[5:]])

    return each_head(seed, change)


def modes(seed: int) -> list[Body]:
    """Another system prompt while it plans."""

    def change(text: str, turn: int, random_: random.Random) -> str:
        return text if turn % 2 else "Plan only.\n" + words(random.Random(seed + 1), 300)

    return each_head(seed, change)


# --- tools ---


def tool_order(seed: int) -> list[Body]:
    """A92: a tool server reconnected."""
    return each_body(seed, lambda body, turn: body["tools"].reverse() if turn in (3, 4) else None)


def tool_gone(seed: int) -> list[Body]:
    """A92: a flaky tool server."""
    return each_body(seed, lambda body, turn: body["tools"].pop(1) if turn == 4 else None)


def tool_schema_order(seed: int) -> list[Body]:
    """Properties come out of a hash map."""

    def change(body: Body, turn: int) -> None:
        parameters = body["tools"][1]["function"]["parameters"]
        if turn % 2:
            parameters["properties"] = dict(reversed(parameters["properties"].items()))

    return each_body(seed, change)


def tool_description_dated(seed: int) -> list[Body]:
    def change(body: Body, turn: int) -> None:
        function = body["tools"][2]["function"]
        function["description"] += f" Index of 2026-03-{turn + 1:02}."

    return each_body(seed, change)


# --- settings and hints ---


def salt_per_request(seed: int) -> list[Body]:
    return each_body(seed, lambda body, turn: body.update(cache_salt=f"salt-{turn}"))


def other_model(seed: int) -> list[Body]:
    return each_body(seed, lambda body, turn: body.update(model="m" if turn % 3 else "m-lora"))


def effort(seed: int) -> list[Body]:
    return each_body(
        seed, lambda body, turn: body.update(reasoning_effort="low" if turn > 3 else "high")
    )


def prompt_logprobs(seed: int) -> list[Body]:
    return each_body(seed, lambda body, turn: body.update(prompt_logprobs=1))


def lost_session_name(seed: int) -> list[Any]:
    """A100: a layer in between drops the header from some turn on."""
    entries = named(Agent(seed).run(NUM_TURNS), f"run-{seed}")
    for entry in entries[4:]:
        del entry["headers"]
    return entries


def lost_tags(seed: int) -> list[Body]:
    """A100: a layer in between drops an unknown field."""

    def change(body: Body, turn: int) -> None:
        if turn < 4:
            body["kv_transfer_params"] = {"agentkv": {"tool": "bash"}}

    return each_body(seed, change)
