"""With the chat template the prompt itself decides what is a fault, and of whom."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from agentkv.doctor.template import Template, load_template
from agentkv.errors import ConfigError
from tests.doctor import faults
from tests.doctor.builders import Agent, Body, causes, examine
from tests.doctor.healthy import HEALTHY

APPENDING = """\
{%- for tool in tools or [] %}{{ tool | tojson }}
{% endfor %}
{%- for message in messages %}<|{{ message.role }}|>
{%- if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif %}
{{- message.content }}
{%- for call in message.tool_calls or [] %}
<call>{{ call.function.name }} {{ call.function.arguments | tojson }}</call>
{%- endfor %}<|end|>
{% endfor %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}"""

# Past thinking goes when the user speaks again, as Qwen3 and others do it.
DROPPING = """\
{%- set ns = namespace(last=0) %}
{%- for message in messages if message.role == 'user' %}{% set ns.last = messages.index(message) %}
{%- endfor %}
{%- for message in messages %}<|{{ message.role }}|>
{%- if message.reasoning_content and loop.index0 > ns.last -%}
<think>{{ message.reasoning_content }}</think>{% endif %}
{{- message.content }}
{%- for call in message.tool_calls or [] %}{{ call.function | tojson }}{% endfor %}<|end|>
{% endfor %}"""

# All system messages are gathered at the head.
HOISTING = """\
<|system|>{% for message in messages if message.role == 'system' %}{{ message.content }}
{% endfor %}<|end|>
{%- for message in messages if message.role != 'system' %}<|{{ message.role }}|>
{{- message.content }}
{%- for call in message.tool_calls or [] %}{{ call.function | tojson }}{% endfor %}<|end|>
{% endfor %}"""

# Says how many messages there are.
COUNTING = "<|{{ messages | length }} messages|>" + APPENDING


def two_tasks(seed: int) -> list[Body]:
    """A93: the user speaks again after a run of tools."""
    agent = Agent(seed, has_thinking=True)
    bodies = agent.run(4)
    agent.say("Now the next task.")
    return [*bodies, *agent.run(3)]


def test_a_template_that_drops_past_thinking_is_named(tmp_path: Path) -> None:
    assert examine(tmp_path, two_tasks(1)).findings == ()
    [found] = examine(tmp_path, two_tasks(1), Template(DROPPING)).findings
    assert found.cause.value == "dropped_thinking" and found.where == "chat template"
    assert found.turn == 5 and found.tokens_lost > 200


def test_a_template_that_only_appends_is_not(tmp_path: Path) -> None:
    assert examine(tmp_path, two_tasks(1), Template(APPENDING)).findings == ()


def test_a_template_that_hoists_notes_is_named_and_one_that_leaves_them_is_not(
    tmp_path: Path,
) -> None:
    bodies = HEALTHY["notes_in_place"](1)
    assert examine(tmp_path, bodies, Template(APPENDING)).findings == ()
    diagnosis = examine(tmp_path, bodies, Template(HOISTING))
    assert causes(diagnosis) == {"hoisted_notes"}
    assert [finding.turn for finding in diagnosis.findings] == [2, 3, 4, 5, 6, 7]


def test_any_other_rewriting_is_the_templates(tmp_path: Path) -> None:
    diagnosis = examine(tmp_path, Agent(1).run(4), Template(COUNTING))
    assert causes(diagnosis) == {"template_rewrites"} and len(diagnosis.findings) == 3


def test_what_the_template_does_not_print_is_no_fault(tmp_path: Path) -> None:
    bodies = faults.numbered_calls(1)
    assert causes(examine(tmp_path, bodies)) == {"call_ids"}
    assert examine(tmp_path, bodies, Template(APPENDING)).findings == ()
    bodies = faults.argument_spaces(1)
    assert examine(tmp_path, bodies, Template(APPENDING)).findings == ()
    bodies = faults.argument_order(1)
    assert causes(examine(tmp_path, bodies, Template(APPENDING))) == {"serialisation"}


@pytest.mark.parametrize("name", sorted(set(HEALTHY) - {"one_shots"}))
def test_healthy_logs_stay_healthy(name: str, tmp_path: Path) -> None:
    assert examine(tmp_path, HEALTHY[name](2), Template(APPENDING)).findings == ()


@pytest.mark.parametrize(
    "fault", ["A91 notes hoisted into the head", "A92 tools in another order", "old results cut"]
)
def test_faults_are_still_found_and_named(fault: str, tmp_path: Path) -> None:
    make, cause = faults.FAULTS[fault]
    assert causes(examine(tmp_path, make(1), Template(APPENDING))) == {cause}


def test_a_request_that_the_template_refuses_is_compared_without_it(tmp_path: Path) -> None:
    refusing = (
        "{% if messages | length > 4 %}{{ raise_exception('too long') }}{% endif %}" + APPENDING
    )
    diagnosis = examine(tmp_path, faults.tool_gone(1), Template(refusing))
    assert causes(diagnosis) == {"tool_set"}
    assert "too long" in diagnosis.unprinted[0].reason


# --- with a tokenizer ---


@pytest.fixture
def model_directory(tmp_path: Path) -> Path:
    """A model's directory whose tokenizer makes a token of each word."""
    model = tmp_path / "model"
    model.mkdir()
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "alpha": 1}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(model / "tokenizer.json"))
    config = {"bos_token": {"content": "<s>"}, "chat_template": "{{ bos_token }} " + APPENDING}
    (model / "tokenizer_config.json").write_text(json.dumps(config))
    return model


def test_tokens_and_the_first_differing_block_are_exact(
    model_directory: Path, tmp_path: Path
) -> None:
    """One token of the first message changes; unknown words are one and the same token."""
    head = [{"role": "system", "content": "be " * 50}]
    tail = [{"role": "assistant", "content": "be " * 60}, {"role": "user", "content": "be " * 7}]
    tail *= 2
    task = {"role": "user", "content": "be " * 40 + "alpha be"}
    first: Body = {"messages": [*head, task, *tail]}
    changed = {"role": "user", "content": "be " * 40 + "be be"}
    second: Body = {"messages": [*head, changed, *tail, *tail]}
    template = load_template(model_directory)
    [found] = examine(tmp_path, [first, second], template).findings
    text = template.render(_request(tmp_path, first))
    token = template.tokens(text).index(1)
    num_tokens = len(template.tokens(text.rstrip()))
    assert found.block is not None and not found.is_estimate
    assert (found.block.token, found.block.index) == (token, token // 16)
    assert found.tokens_lost == num_tokens - token // 16 * 16


def _request(tmp_path: Path, body: Body) -> Any:
    from agentkv.doctor.log_file import read_log
    from tests.doctor.builders import write_log

    [request] = read_log(write_log(tmp_path / "one.jsonl", [body]))
    return request


def test_a_template_comes_from_a_file_a_directory_or_its_list(
    model_directory: Path, tmp_path: Path
) -> None:
    file = tmp_path / "t.jinja"
    file.write_text("FILE")
    request = _request(tmp_path, Agent(1).body())
    assert load_template(file).render(request) == "FILE"
    assert load_template(model_directory).render(request).startswith("<s>{")
    (model_directory / "chat_template.jinja").write_text("OWN")
    assert load_template(model_directory).render(request) == "OWN"
    (model_directory / "chat_template.jinja").unlink()
    listed = [{"name": "rag", "template": "no"}, {"name": "default", "template": "LISTED"}]
    config = json.dumps({"chat_template": listed})
    (model_directory / "tokenizer_config.json").write_text(config)
    assert load_template(model_directory).render(request) == "LISTED"


@pytest.mark.parametrize("content", ["{% if %}", "{{ "])
def test_a_wrong_template_is_one_line(content: str, tmp_path: Path) -> None:
    file = tmp_path / "t.jinja"
    file.write_text(content)
    with pytest.raises(ConfigError, match=r"--template .*t\.jinja: "):
        load_template(file)
    with pytest.raises(ConfigError, match="no such file"):
        load_template(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="it has no chat template"):
        load_template(tmp_path / "empty")
