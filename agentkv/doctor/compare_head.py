"""What changed before the first message: settings, system prompt, tools."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import SequenceMatcher

from agentkv.doctor.causes import Cause
from agentkv.doctor.difference import Difference
from agentkv.doctor.masks import common_chars, evidence, kind_of_change, masked, quoted
from agentkv.doctor.request import Request, Tool

_MAX_RATIO_CHARS = 800


def settings_differences(old: Request, new: Request) -> Iterator[Difference]:
    """All of them stand for another KV from the first token on, or may."""
    if old.model != new.model:
        said = evidence(old.model, new.model)
        yield Difference(Cause.MODEL, "model", 0, said)
    if old.cache_salt != new.cache_salt:
        yield Difference(Cause.CACHE_SALT, "cache_salt", 0, "the salts differ")
    names = sorted(old.template_settings.keys() | new.template_settings.keys())
    for name in names:
        before, after = old.template_settings.get(name, ""), new.template_settings.get(name, "")
        if before != after:
            yield Difference(Cause.TEMPLATE_SETTINGS, name, 0, evidence(before, after))
            break
    if new.skips_cache:
        yield Difference(Cause.SKIPS_CACHE, "prompt_logprobs", 0, "prompt_logprobs is set")


def head_difference(old: Request, new: Request) -> Difference | None:
    """In the system prompt, or the messages at the beginning that make it."""
    before, after = "\n".join(old.head), "\n".join(new.head)
    if before == after:
        return None
    at_char = common_chars(before, after)
    number = before.count("\n", 0, at_char)
    where = f"system prompt, line {number + 1}"
    if _is_growth(before, after) or _is_growth(after, before):
        longer = after if len(after) > len(before) else before
        verb = "added" if longer is after else "removed"
        line = _line_at(longer, at_char) or longer[at_char:]
        return Difference(Cause.HOISTED_NOTES, where, at_char, f"{verb}: {quoted(line)}")
    line_before, line_after = _line_at(before, at_char), _line_at(after, at_char)
    said = evidence(line_before, line_after)
    if not _is_much_the_same(before, after):
        return Difference(Cause.HEAD_REPLACED, where, at_char, said)
    kind = kind_of_change(line_before, line_after)
    return Difference(Cause.CHANGING_FIELD, where, at_char, f"{kind}: {said}")


def _is_growth(shorter: str, longer: str) -> bool:
    """Whether one text is the other with more in it; not so where a line itself was changed."""
    if longer.startswith(shorter):
        return True
    a, b = shorter.split("\n"), longer.split("\n")
    if len(a) >= len(b):
        return False
    kept = SequenceMatcher(None, a, b, autojunk=False).get_opcodes()
    return all(kind in ("equal", "insert") for kind, *_ in kept)


def _is_much_the_same(before: str, after: str) -> bool:
    if masked(before) == masked(after):
        return True
    a, b = before.split("\n"), after.split("\n")
    if min(len(a), len(b)) > 3:
        return SequenceMatcher(None, a, b, autojunk=False).ratio() >= 0.5
    matcher = SequenceMatcher(
        None, before[:_MAX_RATIO_CHARS], after[:_MAX_RATIO_CHARS], autojunk=False
    )
    return matcher.quick_ratio() >= 0.5 and matcher.ratio() >= 0.5


def _line_at(text: str, at_char: int) -> str:
    start = text.rfind("\n", 0, at_char) + 1
    end = text.find("\n", at_char)
    return text[start : end if end >= 0 else len(text)]


def tools_difference(old: Request, new: Request) -> Difference | None:
    """In the list of tools; templates print it after the system prompt, or within it."""
    before, after = [tool.text for tool in old.tools], [tool.text for tool in new.tools]
    if before == after:
        return None
    index = next((i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), None)
    index = min(len(before), len(after)) if index is None else index
    at_char = sum(map(len, old.head)) + sum(map(len, before[:index]))
    names, later = [tool.name for tool in old.tools], [tool.name for tool in new.tools]
    where = f"tools[{index}]"
    if sorted(names) != sorted(later):
        return Difference(Cause.TOOL_SET, where, at_char, _who_came_and_went(names, later))
    if names != later:
        said = f'"{names[index]}" stood there, now "{later[index]}"'
        return Difference(Cause.TOOL_ORDER, where, at_char, said)
    return _definition_difference(old.tools[index], new.tools[index], where, at_char)


def _who_came_and_went(names: list[str], later: list[str]) -> str:
    gone = sorted(set(names) - set(later))
    come = sorted(set(later) - set(names))
    parts = [
        f"{verb}: {', '.join(found[:4])}{' …' if len(found) > 4 else ''}"
        for verb, found in (("gone", gone), ("new", come))
        if found
    ]
    return "; ".join(parts) or "a name is there another number of times"


def _definition_difference(old: Tool, new: Tool, where: str, at_char: int) -> Difference:
    where = f"{where} {old.name}"
    at_char += common_chars(old.text, new.text)
    said = evidence(old.text, new.text)
    if old.sorted_text == new.sorted_text:
        return Difference(Cause.SERIALISATION, where, at_char, f"order of keys: {said}")
    kind = kind_of_change(old.text, new.text)
    return Difference(Cause.CHANGING_FIELD, where, at_char, f"{kind}: {said}")
