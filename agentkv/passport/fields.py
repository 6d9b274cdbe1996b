"""The fields of a `config.json`, each either there and sound or a clear refusal.

Why: a missing number must never become a guess. What a format itself defines (head_dim is
hidden_size / num_attention_heads where it is not given) is no guess; what an architecture defines
and its checkpoints leave out is taken from the architecture and named in the passport (`assumed`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentkv.errors import ConfigError

_MOST = 10**9


class Config:
    """Typed access to one JSON object; `label` says in errors whose it is."""

    def __init__(self, data: Mapping[str, Any], label: str, *, place: str = "") -> None:
        self.data = dict(data)
        self.label = label
        self.assumed: dict[str, Any] = {}
        self._place = place

    @property
    def model_type(self) -> str:
        found = self.data.get("model_type")
        return found if isinstance(found, str) else ""

    def has(self, name: str) -> bool:
        """Whether the field is there and not null."""
        return self.data.get(name) is not None

    def refuse(self, problem: str) -> ConfigError:
        """An error about this config, to be raised."""
        return ConfigError(f"{self.label}: {problem}")

    def integer(self, name: str, *, least: int = 1) -> int:
        """A whole number of at least `least`. Raises ConfigError where it is missing or wrong."""
        if not self.has(name):
            raise self._lacks(name)
        return self._checked(name, least)

    def integer_or(self, name: str, otherwise: int, *, least: int = 0) -> int:
        """The field, or what the format defines where it is not given."""
        return self._checked(name, least) if self.has(name) else otherwise

    def assumed_integer(self, name: str, default: int, *, least: int = 0) -> int:
        """The field, or the architecture's own default, which the passport then names."""
        if self.has(name):
            return self._checked(name, least)
        self.assumed[self._place + name] = default
        return default

    def assume(self, defaults: Mapping[str, int]) -> None:
        """Takes these of the architecture for fields that are not given; the passport names them.

        Not where `layer_types` already says what a default would.
        """
        for name, value in defaults.items():
            if not self.has(name) and not (name.endswith("_pattern") and self.has("layer_types")):
                self.data[name] = self.assumed[self._place + name] = value

    def flag(self, name: str, default: bool | None = None) -> bool:
        """True or false. Raises ConfigError where it is missing and has no default."""
        if not self.has(name):
            if default is None:
                raise self._lacks(name)
            return default
        value = self.data[name]
        if not isinstance(value, bool):
            raise self.refuse(f"`{self._place}{name}` is {value!r}; it must be true or false")
        return value

    def section(self, name: str) -> Config:
        """An object within. Raises ConfigError where it is missing."""
        if not isinstance(self.data.get(name), Mapping):
            raise self._lacks(name)
        return Config(self.data[name], self.label, place=f"{self._place}{name}.")

    def sequence(self, name: str) -> list[Any]:
        """A list. Raises ConfigError where it is missing."""
        if not isinstance(self.data.get(name), list):
            raise self._lacks(name)
        return list(self.data[name])

    def _lacks(self, name: str) -> ConfigError:
        return self.refuse(
            f"{self.model_type or 'the architecture'} needs `{self._place}{name}`, which"
            " config.json lacks; give the complete config.json of the checkpoint"
        )

    def _checked(self, name: str, least: int) -> int:
        value = self.data[name]
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _MOST:
            raise self.refuse(
                f"`{self._place}{name}` is {value!r}; it must be a whole number of at least {least}"
            )
        return value
