"""Healthy logs with all that innocent clients do: they grow, fork, try again and change settings.

Each has the whole of some kind of innocent variation; none loses a token that it could have kept.
"""

from __future__ import annotations

import copy
import itertools
import json
import random
from typing import Any

from tests.doctor.builders import Agent, Body, Entry, as_messages, as_responses, named, words


def plain(seed: int) -> list[Any]:
    return Agent(seed).run(10)


def with_names(seed: int) -> list[Any]:
    return named(Agent(seed).run(10), "run-1")


def thinking_kept(seed: int) -> list[Any]:
    return Agent(seed, has_thinking=True).run(8)


def interleaved(seed: int) -> list[Any]:
    """Five sessions without names, one task, one head."""
    runs = [_same_start(seed, i).run(6) for i in range(5)]
    return [body for turn in zip(*runs, strict=True) for body in turn]


def _same_start(seed: int, which: int) -> Agent:
    agent = Agent(seed)
    agent.random = random.Random(f"{seed}.{which}")
    return agent


def interleaved_by_name(seed: int) -> list[Any]:
    runs = [named(_same_start(seed, i).run(6), f"run-{i}") for i in range(4)]
    entries = list(itertools.chain.from_iterable(runs))
    random_ = random.Random(seed)
    queues = [list(run) for run in runs]
    return [random_.choice([q for q in queues if q]).pop(0) for _ in entries]


def own_heads(seed: int) -> list[Any]:
    """Sessions of one client whose heads differ from session to session, never within one."""
    runs = []
    for i in range(4):
        agent = Agent(seed)
        agent.random = random.Random(f"{seed}.{i}")
        agent.messages[0]["content"] += f"\nSession started 2026-01-0{i + 1} in /home/dev/{i}."
        runs.append(agent.run(5))
    return [body for turn in zip(*runs, strict=True) for body in turn]


def sub_agents(seed: int) -> list[Any]:
    """Under one name: the main agent, and others that share its head and tools."""
    main = Agent(seed)
    bodies = main.run(4)
    for i in range(2):
        child = Agent(seed, task=f"Write a summary of module {i}: " + words(main.random, 30))
        child.random = random.Random(f"{seed}.{i}")
        bodies += child.run(3)
    return named([*bodies, *_go_on(main, 4)], "run-1")


def _go_on(agent: Agent, num_turns: int) -> list[Body]:
    agent.go_on()
    return agent.run(num_turns)


def other_helpers(seed: int) -> list[Any]:
    """Under one name: title and topic requests of another model, with heads of their own."""
    main, entries = Agent(seed), []
    for turn, body in enumerate(main.run(6)):
        entries.append(body)
        if turn in (0, 3):
            told = [{"role": "system", "content": f"Give a title. Today is day {turn}."}]
            asked = [*told, {"role": "user", "content": words(main.random, 20)}]
            entries.append({"model": "small", "messages": asked, "max_tokens": 20})
    return named(entries, "run-1")


def questions_beside(seed: int) -> list[Any]:
    """Requests that add a question to the history, which the session then goes on without."""
    agent, bodies = Agent(seed), []
    for body in agent.run(7):
        bodies.append(body)
        beside = copy.deepcopy(body)
        beside["messages"].append({"role": "user", "content": "Suggest the next step in a word."})
        bodies.append(beside)
    return bodies


def forks(seed: int) -> list[Any]:
    """From the fourth turn three ways are tried, one after the other."""
    trunk = Agent(seed)
    bodies = trunk.run(4)
    for i in range(3):
        branch = Agent(seed)
        branch.messages = copy.deepcopy(trunk.messages)
        branch.random = random.Random(f"{seed}/{i}")
        bodies += _go_on(branch, 3)
    return named(bodies, "run-1")


def edited_and_asked_again(seed: int) -> list[Any]:
    """The user takes the last question back and asks another one."""
    agent = Agent(seed)
    bodies = agent.run(3)
    agent.say(words(agent.random, 30))
    bodies.append(agent.body())
    agent.messages[-1] = {"role": "user", "content": words(agent.random, 35)}
    return [*bodies, *agent.run(3)]


def retries(seed: int) -> list[Any]:
    """Time-outs: the same request twice, and once with another temperature."""
    bodies = []
    for turn, body in enumerate(Agent(seed).run(7)):
        bodies.append(body)
        if turn % 2:
            bodies.append({**copy.deepcopy(body), "temperature": 0.2})
    return bodies


def one_shots(seed: int) -> list[Any]:
    """Unlike requests of many clients, some alike to the letter."""
    random_ = random.Random(seed)
    bodies: list[Body] = [
        {
            "model": "m",
            "messages": [
                {"role": "system", "content": f"Classify. Version {i % 3}. " + words(random_, 20)},
                {"role": "user", "content": "ping" if i % 2 else words(random_, 15)},
            ],
        }
        for i in range(20)
    ]
    return bodies


def sampling(seed: int) -> list[Any]:
    """All that changes the reply and not the prompt."""
    bodies = Agent(seed).run(8)
    for turn, body in enumerate(bodies):
        body.update(
            stream=bool(turn % 2),
            max_tokens=100 + turn,
            temperature=turn / 10,
            top_p=1 - turn / 100,
            seed=turn,
            tool_choice="auto" if turn % 2 else "required",
            user=f"u{turn}",
            metadata={"request": str(turn)},
            stop=[words(random.Random(turn), 1)],
            stream_options={"include_usage": True},
            logprobs=True,
            parallel_tool_calls=bool(turn % 3),
        )
    return bodies


def notes_in_place(seed: int) -> list[Any]:
    """A91's cure: notes are messages where they arose."""
    agent, bodies = Agent(seed), []
    for turn in range(7):
        bodies.append(agent.body())
        agent.go_on()
        agent.messages.append({"role": "system", "content": f"{turn} of 7 turns are left."})
    return bodies


def conversation(seed: int) -> list[Any]:
    """A person goes on asking, in part the same."""
    agent, bodies = Agent(seed), []
    for turn in range(6):
        bodies.append(agent.body())
        agent.go_on() if turn % 2 else agent.say("continue")
    return bodies


def short_results(seed: int) -> list[Any]:
    """Tools that always say the same."""
    agent = Agent(seed)
    bodies = [agent.body()]
    for _ in range(7):
        agent.go_on()
        agent.messages[-1]["content"] = "ok"
        bodies.append(agent.body())
    return bodies


def claude_code(seed: int) -> list[Any]:
    """Markers that roll, and the billing line that vLLM itself takes away."""
    entries: list[Entry] = []
    for turn, chat in enumerate(Agent(seed, has_thinking=True).run(7)):
        body = as_messages(chat)
        line = f"x-anthropic-billing-header: cc_version=2.1; cch={turn:05x};"
        body["system"].insert(0, {"type": "text", "text": line})
        body["system"][-1]["cache_control"] = {"type": "ephemeral"}
        body["tools"][-1]["cache_control"] = {"type": "ephemeral"}
        for message in body["messages"][-2:]:
            message["content"] = message["content"] or []
            message["content"][-1]["cache_control"] = {"type": "ephemeral"}
        headers = {"x-claude-code-session-id": "11111111-2222", "content-length": str(turn)}
        entries.append({"time": turn, "path": "/v1/messages", "headers": headers, "body": body})
    return entries


def anthropic(seed: int) -> list[Any]:
    return [as_messages(body) for body in Agent(seed).run(8)]


def responses(seed: int) -> list[Any]:
    return [as_responses(body) for body in Agent(seed, has_thinking=True).run(8)]


def content_forms(seed: int) -> list[Any]:
    """A text, or a list of one part: no template sees the difference."""
    bodies = Agent(seed).run(8)
    for turn, body in enumerate(bodies):
        for message in body["messages"]:
            if turn % 2 and isinstance(message["content"], str):
                message["content"] = [{"type": "text", "text": message["content"]}]
    return bodies


def key_order(seed: int) -> list[Any]:
    """Of the request, the messages and the tools, which the server reads in its own order."""
    bodies = []
    for turn, body in enumerate(Agent(seed).run(6)):
        if turn % 2:
            body = dict(reversed(body.items()))
            body["messages"] = [dict(reversed(m.items())) for m in body["messages"]]
            for each in body["tools"]:
                each["function"] = dict(reversed(each["function"].items()))
        bodies.append(body)
    return bodies


def with_replies(seed: int) -> list[Any]:
    """Replies and counts are in the log; every reply comes back as it was."""
    agent, entries, known = Agent(seed, has_thinking=True), [], 0
    for _ in range(8):
        body = agent.body()
        agent.go_on()
        reply = copy.deepcopy(agent.messages[-2])
        reply["tool_calls"][0]["function"]["arguments"] = json.dumps(
            json.loads(reply["tool_calls"][0]["function"]["arguments"]), separators=(",", ":")
        )
        prompt = len(json.dumps(body)) // 4
        details = {"cached_tokens": known // 16 * 16}
        usage = {"prompt_tokens": prompt, "completion_tokens": 90, "prompt_tokens_details": details}
        answer = {"id": "chatcmpl-1", "usage": usage, "choices": [{"index": 0, "message": reply}]}
        entries.append({"request": body, "response": answer})
        known = prompt + 90
    return entries


def by_token_ids(seed: int) -> list[Any]:
    random_ = random.Random(seed)
    prompt, entries = [random_.randrange(9000) for _ in range(500)], []
    for _ in range(8):
        reply = [random_.randrange(9000) for _ in range(100)]
        choice = {"index": 0, "token_ids": reply}
        body = {"model": "m", "prompt": list(prompt)}
        entries.append({"body": body, "response": {"choices": [choice]}})
        prompt += [*reply, *(random_.randrange(9000) for _ in range(40))]
    return entries


def images_kept(seed: int) -> list[Any]:
    agent = Agent(seed)
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    task = agent.messages[1]["content"]
    agent.messages[1]["content"] = [{"type": "text", "text": task}, image]
    return agent.run(7)


def tags_now_and_then(seed: int) -> list[Any]:
    bodies = Agent(seed).run(9)
    for turn, body in enumerate(bodies):
        if turn % 3 == 0:
            body["kv_transfer_params"] = {"agentkv": {"tool": "bash"}}
    return bodies


def prefilled(seed: int) -> list[Any]:
    """A raw prompt that grows, as of an own template."""
    random_ = random.Random(seed)
    prompt, bodies = "System: " + words(random_, 200), []
    for _ in range(8):
        bodies.append({"model": "m", "prompt": prompt})
        prompt += f"\nAssistant: {words(random_, 30)}\nTool: {words(random_, 60)}"
    return bodies


def alike_tasks(seed: int) -> list[Any]:
    """Sessions without names, told much the same, whose tools often say the same."""
    runs = [_alike(seed, which).run(6) for which in range(6)]
    return [body for turn in zip(*runs, strict=True) for body in turn]


class _Terse(Agent):
    """Its tools say one of three things."""

    def go_on(self) -> None:
        super().go_on()
        codes = ["<returncode>0</returncode>", "<returncode>1</returncode>", "no output"]
        self.messages[-1]["content"] = self.random.choice(codes)


def _alike(seed: int, which: int) -> Agent:
    told = words(random.Random(seed), 150)
    task = f"Issue {which}: {words(random.Random(which), 15)}\n{told}"
    agent = _Terse(seed, task=task)
    agent.random = random.Random(f"{seed}.{which}")
    return agent


def alike_prompts(seed: int) -> list[Any]:
    """The same as raw prompts."""
    bodies = []
    for body in alike_tasks(seed):
        lines = [f"{m['role']}: {m['content']}" for m in body["messages"]]
        bodies.append({"model": "m", "prompt": "\n".join(lines)})
    return bodies


def log_began_later(seed: int) -> list[Any]:
    """Of some sessions only later requests are in the log: others' are no measure for them."""
    return [*alike_tasks(seed)[:2], *_alike(seed, 7).run(5)[2:], *_same_task(seed)]


def _same_task(seed: int) -> list[Body]:
    """One task twice; the tools' results are the same, the replies are not."""
    runs = []
    for which in range(2):
        agent = _Terse(seed)
        agent.random = random.Random(f"{seed}.{which}")
        runs.append(agent.run(5))
        for body in runs[-1]:
            for message in body["messages"]:
                if message["role"] == "tool":
                    message["content"] = "ok"
    return [*runs[0][:3], *runs[1][3:]]


def prompts_began_later(seed: int) -> list[Any]:
    """The same with raw prompts."""
    prompts = alike_prompts(seed)
    return [prompts[0], prompts[6 + 1], prompts[12 + 1]]


def summariser(seed: int) -> list[Any]:
    """A sub-agent of the session is given what was said so far; the session itself goes on."""
    main = Agent(seed)
    bodies = main.run(5)
    told = "Summary of the conversation so far: " + words(main.random, 40)
    child = Agent(seed, task=told)
    child.random = random.Random(f"{seed}.child")
    return named([*bodies, *child.run(2), *_go_on(main, 3)], "run-1")


def tags_until_the_end_is_near(seed: int) -> list[Any]:
    bodies = Agent(seed).run(9)
    for body in bodies[:7]:
        body["kv_transfer_params"] = {"agentkv": {"tool": "bash"}}
    return bodies


HEALTHY = {
    name: make
    for name, make in list(globals().items())
    if callable(make)
    and not isinstance(make, type)
    and getattr(make, "__module__", "") == __name__
    and not name.startswith("_")
}
