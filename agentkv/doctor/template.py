"""The prompt itself: a chat template, and where it is on disk the tokenizer, as vLLM uses them.

What: renders a request's messages to text, and to tokens. Why: some of what changes in a request is
not printed by the template, and some templates rewrite what did not change; only the text decides.
Where: `diagnose` asks it, if the user gave one. Jinja2 and tokenizers are imported here alone.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentkv.doctor.as_chat import chat_messages, chat_tools
from agentkv.doctor.request import Request
from agentkv.errors import ConfigError
from agentkv.watch.formats import object_of, text_of

if TYPE_CHECKING:
    import jinja2
    import tokenizers

_TODAY = "2026-01-01"


class TemplateError(Exception):
    """The template cannot print this request."""


class Template:
    """One chat template; `tokenizer` is None where only the template is known."""

    def __init__(
        self,
        source: str,
        *,
        special_tokens: dict[str, str] | None = None,
        tokenizer: tokenizers.Tokenizer | None = None,
    ) -> None:
        self._template = _environment().from_string(source)
        self._special_tokens = special_tokens or {}
        self._tokenizer = tokenizer

    @property
    def has_tokenizer(self) -> bool:
        return self._tokenizer is not None

    def render(self, request: Request) -> str:
        """The prompt, without the beginning of a reply. Raises TemplateError."""
        settings = object_of(request.body.get("chat_template_kwargs"))
        effort = request.body.get("reasoning_effort")
        known = {**({"reasoning_effort": effort} if effort else {}), **settings}
        try:
            return self._template.render(
                messages=chat_messages(request),
                tools=chat_tools(request) or None,
                add_generation_prompt=False,
                **{**self._special_tokens, **known},
            )
        except Exception as error:  # a template may raise anything
            raise TemplateError(f"{type(error).__name__}: {error}") from None

    def tokens(self, text: str) -> list[int]:
        """The text's token ids; only with a tokenizer."""
        assert self._tokenizer is not None
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)


def load_template(path: Path) -> Template:
    """From a template file, or a model's directory with its tokenizer. Raises ConfigError."""
    if not path.exists():
        raise ConfigError(f"--template {path}: no such file or directory")
    if path.is_file():
        return _compiled(_read(path), {}, None, path)
    config = object_of(json.loads(_read(path / "tokenizer_config.json") or "{}"))
    source = _read(path / "chat_template.jinja") or _template_in(config)
    if not source:
        raise ConfigError(
            f"--template {path}: it has no chat template (chat_template.jinja, or chat_template in "
            "tokenizer_config.json); name the template's own file"
        )
    return _compiled(source, _special_tokens(config), _load_tokenizer(path), path)


def _compiled(
    source: str, special: dict[str, str], tokenizer: tokenizers.Tokenizer | None, path: Path
) -> Template:
    try:
        return Template(source, special_tokens=special, tokenizer=tokenizer)
    except ImportError as error:
        raise ConfigError(
            f"--template: needs {error.name}; pip install jinja2 (any vLLM brings it)"
        ) from None
    except Exception as error:
        raise ConfigError(f"--template {path}: {error}") from None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--template {path}: cannot be read: {error}") from None


def _template_in(config: Any) -> str:
    """A model may have several; the one called default is what chats use."""
    found = config.get("chat_template")
    if isinstance(found, list):
        named = {text_of(object_of(each).get("name")): object_of(each) for each in found}
        found = named.get("default", {}).get("template")
    return text_of(found)


def _special_tokens(config: Any) -> dict[str, str]:
    """Templates print them by name: bos_token and the like."""
    names = ("bos_token", "eos_token", "pad_token", "unk_token")
    values = {name: config.get(name) for name in names}
    return {
        name: text
        for name, value in values.items()
        if (text := text_of(value) or text_of(object_of(value).get("content")))
    }


def _load_tokenizer(path: Path) -> tokenizers.Tokenizer | None:
    file = path / "tokenizer.json"
    if not file.exists():
        return None
    try:
        import tokenizers
    except ImportError:
        return None
    try:
        return tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare exceptions
        raise ConfigError(f"--template {file}: {error}") from None


def _environment() -> jinja2.Environment:
    """As transformers sets it up: sandboxed, with what templates of models use."""
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_generation_tag(), loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise
    # One day for all: that the day changes at midnight is not the session's doing.
    environment.globals["strftime_now"] = lambda format: _TODAY
    return environment


def _generation_tag() -> type[jinja2.ext.Extension]:
    """`{% generation %}`, which marks replies for training, prints what is within it."""
    from jinja2.ext import Extension

    class Generation(Extension):
        tags = {"generation"}  # noqa: RUF012  (the base class says so)

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    return Generation


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **_: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def _raise(message: str) -> None:
    raise ValueError(message)
