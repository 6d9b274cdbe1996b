"""How single values are read, and how a wrong one is explained.

What: parsers for sizes and "auto", and the translation of pydantic's errors into one line.
Why: pydantic's own report is made for programmers; a user needs the key, the problem and the mend.
Where: below `agentkv.config`, which holds the tree.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from typing import Final, Literal, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

Auto = Literal["auto"]
AUTO: Final[Auto] = "auto"
MIN_SIZE_BYTES: Final = 1 << 20

_SIZE_PATTERN: Final = re.compile(r"([0-9.]+(?:e\+?[0-9]+)?)\s*([kmgtp]i?b?|b)?", re.IGNORECASE)
_POWERS: Final = "bkmgtp"


def parse_size(value: object) -> object:
    """Read a size in bytes: 34359738368, 3.2e10, "32GiB" (2**30), "32GB" (10**9) or "auto".

    Raises ValueError for anything else, and for less than 1 MiB, which is surely a missing unit.
    """
    if value == AUTO:
        return AUTO
    size = _size_bytes(value)
    if size is None:
        raise ValueError(
            f'{_show(value)} is not a size; write "auto", a size such as "32GiB", '
            "or a whole number of bytes"
        )
    if size < MIN_SIZE_BYTES:
        mend = f'; did you mean "{size}GiB"?' if 0 < size <= 4096 else ""
        raise ValueError(f"must be at least 1MiB, is {size} bytes{mend}")
    return size


def _size_bytes(value: object) -> int | None:
    """The number of bytes, or None when the value is no size."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    match = _SIZE_PATTERN.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        return _signed_int(value)
    unit = (match[2] or "b").lower()
    try:
        size = float(match[1]) * (1024 if "i" in unit else 1000) ** _POWERS.index(unit[0])
    except ValueError:
        return None
    return int(size)


def _signed_int(value: object) -> int | None:
    """Read "-1", so that the complaint is about the sign and not about the form."""
    return int(value) if isinstance(value, str) and re.fullmatch(r"\s*-\d+\s*", value) else None


def format_size(num_bytes: int) -> str:
    """A size for people: 1536 MiB as "1.5GiB"."""
    size = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.4g}{unit}"
        size /= 1024
    return f"{size:.4g}TiB"


def count_or_auto(value: object) -> object:
    """Read a whole number that is not negative, or "auto". Raises ValueError."""
    if value == AUTO:
        return AUTO
    try:
        count = int(value) if isinstance(value, (int, float, str)) else None
    except (ValueError, OverflowError):
        count = None
    if count is None or isinstance(value, bool) or (isinstance(value, float) and count != value):
        raise ValueError(f'{_show(value)} is not a count; write "auto" or a whole number')
    if count < 0:
        raise ValueError(f'must not be negative, is {count}; write "auto" or a whole number')
    return count


def refuse_bool(value: object) -> object:
    """Refuse true and false where a number is wanted: they would be read as 1 and 0."""
    if isinstance(value, bool):
        raise ValueError(f"must be a number, is {_show(value)}")
    return value


def describe_error(model: type[BaseModel], error: ValidationError) -> str:
    """The first problem as `key.path: what is wrong; how to mend it`, and how many more follow."""
    first, *others = error.errors()
    more = f" ({len(others)} more to mend after this)" if others else ""
    return " ".join((_describe(model, first) + more).split())  # A key may hold a line break.


def _describe(model: type[BaseModel], error: ErrorDetails) -> str:
    path = ".".join(str(part) for part in error["loc"])
    kind, value = error["type"], error["input"]
    if kind == "extra_forbidden":
        return f"{path}: unknown key; {_nearest_key(model, path)}"
    if kind in ("model_type", "dict_type", "model_attributes_type"):
        return f"{path}: must be a mapping of keys, is {_show(value)}"
    if kind == "literal_error":
        return f"{path}: unknown value {_show(value)}; {_nearest_value(model, path, value)}"
    if kind == "value_error":
        return f"{path}: {error['ctx']['error']}" if path else str(error["ctx"]["error"])
    problem = error["msg"].removeprefix("Input ").replace("should be", "must be")
    problem = problem.replace("is not a valid path for <class 'pathlib.Path'>", "must be a path")
    return f"{path}: {problem}, is {_show(value)}"


def _nearest_key(model: type[BaseModel], path: str) -> str:
    """Propose the key meant: by its full path first, then by its last part in any section."""
    paths = list(config_paths(model))
    leaf_to_path = {known.rpartition(".")[2]: known for known in reversed(paths)}
    if path in leaf_to_path:
        return f"did you mean {leaf_to_path[path]}?"
    if match := difflib.get_close_matches(path, paths, n=1, cutoff=0.75):
        return f"did you mean {match[0]}?"
    leaf = path.rpartition(".")[2]
    if match := difflib.get_close_matches(leaf, leaf_to_path, n=1, cutoff=0.7):
        return f"did you mean {leaf_to_path[match[0]]}?"
    section = path.rpartition(".")[0]
    siblings = [known for known in paths if known.rpartition(".")[0] == section]
    hint = "" if section else "; a setting of vLLM's native offloading goes under offloading"
    return f"valid here: {', '.join(known.rpartition('.')[2] for known in siblings)}{hint}"


def _nearest_value(model: type[BaseModel], path: str, value: object) -> str:
    choices = [str(choice) for choice in get_args(_annotation(model, path))]
    match = difflib.get_close_matches(str(value), choices, n=1, cutoff=0.5)
    return f"did you mean {match[0]}?" if match else f"one of: {', '.join(choices)}"


def config_paths(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Every key path of the tree, sections included, in the order of the fields."""
    for name, field in model.model_fields.items():
        yield prefix + name
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from config_paths(field.annotation, f"{prefix}{name}.")


def _annotation(model: type[BaseModel], path: str) -> object:
    *sections, leaf = path.split(".")
    for section in sections:
        annotation = model.model_fields[section].annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            model = annotation
    return model.model_fields[leaf].annotation


def _show(value: object) -> str:
    """A value as the user would write it in YAML or JSON, cut to one short line."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = f'"{value}"' if isinstance(value, str) else repr(value)
    return " ".join(text.split())[:80]
