"""Sizes, times and counts as people read them: short, and without false precision."""

from __future__ import annotations

import math

_BINARY = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")
_DECIMAL = (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3))
_TIMES = ((86_400.0, "d"), (3600.0, "h"), (60.0, "min"))


def size_text(num_bytes: float) -> str:
    """As `320 KiB`; exact up to five digits, which is how sizes of one token come out."""
    value, unit = float(num_bytes), 0
    while abs(value) >= 1024 and unit < len(_BINARY) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.5g} {_BINARY[unit]}" if value < 1000 else f"{value:.0f} {_BINARY[unit]}"


def bytes_text(num_bytes: float) -> str:
    """As `80 GB`: decimal, as memory is sold."""
    return number_text(num_bytes, "B", digits=4)


def number_text(value: float, unit: str = "", digits: int = 3) -> str:
    """As `70.6G`: with a decimal prefix from a thousand on."""
    for prefix, size in _DECIMAL:
        if abs(value) >= size:
            return f"{_significant(value / size, digits)} {prefix}{unit}".strip()
    return f"{_significant(value, digits)} {unit}".strip()


def seconds_text(seconds: float) -> str:
    """As `215 ms`, `5.7 s`, `12 min`."""
    if math.isinf(seconds):
        return "never"
    for size, unit in _TIMES:
        if seconds >= 2 * size:
            return f"{_significant(seconds / size, 2)} {unit}"
    if seconds >= 1 or seconds == 0:
        return f"{_significant(seconds, 3)} s"
    scale, unit = (1e3, "ms") if seconds >= 1e-3 else (1e6, "µs")
    return f"{_significant(seconds * scale, 3)} {unit}"


def _significant(value: float, digits: int) -> str:
    """So many significant digits, never in exponents."""
    if value == 0:
        return "0"
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{places}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
