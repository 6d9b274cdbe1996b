"""One request and the one before it: what differs, what that costs, and what to leave unsaid.

The text of the prompt decides where a template is given: what it does not print is no fault. Where
nothing differs, token ids and the server's own counts may still tell of a reply that came back as
other tokens, or of KV that was gone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from agentkv.doctor.causes import Cause
from agentkv.doctor.compare_head import head_difference, settings_differences, tools_difference
from agentkv.doctor.compare_messages import message_differences
from agentkv.doctor.compare_prompt import Parting, Prompt, parting, template_difference
from agentkv.doctor.compare_reply import count_difference, reply_difference, tokens_difference
from agentkv.doctor.costs import BLOCK_TOKENS, NO_COST, Cost, cost_of
from agentkv.doctor.difference import Difference
from agentkv.doctor.finding import Block
from agentkv.doctor.hints import lost_name
from agentkv.doctor.log_file import Skipped
from agentkv.doctor.request import Request
from agentkv.doctor.template import Template, TemplateError
from agentkv.doctor.threads import Node, Relation

_MAX_PROMPTS = 256
_NOT_IN_THE_TEXT = frozenset({Cause.MODEL, Cause.CACHE_SALT, Cause.SKIPS_CACHE, Cause.MEDIA})


@dataclass(frozen=True, slots=True)
class Costed:
    difference: Difference
    cost: Cost
    block: Block | None = None


@dataclass(slots=True)
class Judge:
    """`unprinted` gathers the requests that the template could not print, with why."""

    template: Template | None = None
    block_tokens: int = BLOCK_TOKENS
    unprinted: list[Skipped] = field(default_factory=list)
    _prompts: dict[int, Prompt | None] = field(default_factory=dict)
    _is_server_caching: bool = False

    def judge(self, node: Node) -> list[Costed]:
        """What is worth a word about a request that goes on from another, the first one first."""
        former, request = node.previous, node.request
        self._is_server_caching |= bool(request.usage.cached_tokens)
        if former is None:
            return []
        found = list(self._compared(node, former, former.request, request))
        lost = lost_name(node)
        return found if lost is None else [*found, Costed(lost, NO_COST)]

    def _compared(self, node: Node, former: Node, old: Request, new: Request) -> Iterator[Costed]:
        if node.relation is Relation.COMPACTION:
            yield _compaction(old, new)
            return
        differences = list(_differences(node, former))
        printed = self._printed(differences, old, new)
        if printed is None:
            costed = (Costed(each, cost_of(old, new, each.at_char)) for each in differences)
            yield from (each for each in costed if each.cost.tokens_lost >= self.block_tokens)
        else:
            yield from printed
        if not differences and not printed:
            yield from self._counted(old, new)

    def _printed(
        self, differences: list[Difference], old: Request, new: Request
    ) -> list[Costed] | None:
        """As the template decides; None where it cannot."""
        before, after = self._prompt(old), self._prompt(new)
        if self.template is None or before is None or after is None:
            return None
        found = parting(self.template, before, after, self.block_tokens)
        if found is None:
            kept = [each for each in differences if each.cause in _NOT_IN_THE_TEXT]
            kept += [each for each in differences if each.at_char >= old.num_chars]
            return [Costed(each, cost_of(old, new, each.at_char)) for each in kept]
        if found.tokens_lost < self.block_tokens:
            return []
        causes = differences or [template_difference(before, after, found.at_char)]
        return [_exactly(each, found) for each in causes]

    def _prompt(self, request: Request) -> Prompt | None:
        """Printed once: the next request is held against it."""
        if self.template is None or request.api == "completions":
            return None
        if request.line not in self._prompts:
            self._prompts[request.line] = self._render(self.template, request)
            while len(self._prompts) > _MAX_PROMPTS:
                self._prompts.pop(next(iter(self._prompts)))
        return self._prompts[request.line]

    def _render(self, template: Template, request: Request) -> Prompt | None:
        try:
            return Prompt(request, template.render(request))
        except TemplateError as error:
            self.unprinted.append(Skipped(request.line, str(error)))
            return None

    def _counted(self, old: Request, new: Request) -> Iterator[Costed]:
        """What only token ids or the server's counts can tell."""
        if (by_ids := tokens_difference(old, new)) is not None:
            cause, token, known = by_ids
            index = token // self.block_tokens
            lost = min(known, len(new.prompt_ids)) - index * self.block_tokens
            said = Difference(cause, "token ids", 0, f"token {token} differs")
            block = Block(index, known // self.block_tokens, token)
            yield Costed(said, Cost(lost, known, is_estimate=False), block)
            return
        by_counts = count_difference(old, new) if self._is_server_caching else None
        if by_counts is not None:
            cause, found, known = by_counts
            said = Difference(cause, "usage", 0, f"{found:,} of {known:,} tokens found")
            yield Costed(said, Cost(known - found, known, is_estimate=False))


def _differences(node: Node, former: Node) -> Iterator[Difference]:
    """In the order of the prompt; of one class only the first."""
    seen: set[Cause] = set()
    for difference in _all_differences(node, former):
        if difference.cause not in seen:
            seen.add(difference.cause)
            yield difference


def _all_differences(node: Node, former: Node) -> Iterator[Difference]:
    old, new = former.request, node.request
    yield from settings_differences(old, new)
    for found in (head_difference(old, new), tools_difference(old, new)):
        if found is not None:
            yield found
    yield from message_differences(old, new, former.keys, node.keys)
    if node.relation is Relation.APPEND:
        reply = reply_difference(old, new)
        if reply is not None:
            yield reply


def _compaction(old: Request, new: Request) -> Costed:
    """Head and tools are found again, the history is not."""
    head_chars = sum(map(len, old.head)) + sum(len(tool.text) for tool in old.tools)
    at_char = head_chars if old.head == new.head else 0
    said = f"{len(old.messages)} messages became {len(new.messages)}"
    return Costed(
        Difference(Cause.COMPACTION, "messages[0]", at_char, said), cost_of(old, new, at_char)
    )


def _exactly(difference: Difference, found: Parting) -> Costed:
    cost = Cost(found.tokens_lost, found.tokens_known, is_estimate=found.block is None)
    return Costed(difference, cost, found.block)
