"""What every KV element must hold: a number made from the whole prefix, the layer and its place.

A float32 canary is a whole number below 2^23, so it is exact and never NaN. The next token is a sum
over all KV a decode reads: one wrong element gives another answer.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

ELEMENTS = 32  # K and V of one token and layer: 2 * HEAD_SIZE
VOCABULARY = 30000
_MASK = (1 << 64) - 1


class CanaryError(AssertionError):
    """A request reads KV that is not its own prefix's."""


class Canary:
    """The canaries of one growing token list, layer by layer."""

    def __init__(self, num_layers: int) -> None:
        self._num_layers = num_layers
        self._tokens: list[int] = []
        self._states: list[int] = []
        self._values = [np.zeros((0, ELEMENTS), dtype=np.float32) for _ in range(num_layers)]

    def of(self, tokens: Sequence[int], layer: int) -> np.ndarray:
        """Float32 of shape (tokens, ELEMENTS)."""
        self._follow(tokens)
        return self._values[layer][: len(tokens)]

    def _follow(self, tokens: Sequence[int]) -> None:
        known = len(self._tokens)
        if list(tokens[:known]) != self._tokens[: len(tokens)]:
            self.__init__(self._num_layers)  # type: ignore[misc]
            known = 0
        if len(tokens) <= known:
            return
        state = self._states[-1] if self._states else 0
        for token in tokens[known:]:
            state = _mix(state ^ (token + 1))
            self._tokens.append(token)
            self._states.append(state)
        states = np.array(self._states[known:], dtype=np.uint64)[:, None]
        for layer in range(self._num_layers):
            salt = np.array(
                [_mix(layer * ELEMENTS + element + 1) for element in range(ELEMENTS)],
                dtype=np.uint64,
            )
            mixed = (states ^ salt) * np.uint64(0x9E3779B97F4A7C15)
            new = (mixed >> np.uint64(41)).astype(np.float32)
            self._values[layer] = np.concatenate([self._values[layer], new])


def next_token(layers: Sequence[np.ndarray]) -> int:
    """The token decoded from what was read of each layer; the order of positions matters."""
    total = 0
    for number, values in enumerate(layers, start=1):
        weights = np.arange(1, values.size + 1, dtype=np.uint64).reshape(values.shape)
        whole = np.nan_to_num(values, nan=7.0).astype(np.uint64)
        total += int((whole * weights).sum()) * number
    return total % VOCABULARY


def answer(
    tokens: Sequence[int], num_tokens: int, windows: Sequence[int | None] = (None, None)
) -> list[int]:
    """The right answer to a prompt; `windows` gives each layer's attention window."""
    canary = Canary(len(windows))
    context = list(tokens)
    for _ in range(num_tokens):
        seen = [
            canary.of(context, layer)[first_read(len(context), window) :]
            for layer, window in enumerate(windows)
        ]
        context.append(next_token(seen))
    return context[len(tokens) :]


def first_read(num_tokens: int, window: int | None) -> int:
    """The first position that the last of `num_tokens` attends to."""
    return 0 if window is None else max(0, num_tokens - window)


def _mix(value: int) -> int:
    """splitmix64."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
