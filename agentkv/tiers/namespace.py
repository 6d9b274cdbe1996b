"""What makes stored KV usable: the namespace of a model, its layout and what computed it.

Two engines may share entries exactly if every field is equal (design decision 10). The fields'
digest names the namespace in each tier, so a difference is a miss by construction; the fields
themselves lie beside it as a manifest, so that the miss can be explained.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

_DIGEST_CHARS = 32


@dataclass(frozen=True)
class Namespace:
    """Names and values of all that decides whether stored KV fits, for example `kv_dtype`."""

    fields: Mapping[str, str]

    @cached_property
    def digest(self) -> str:
        """32 hexadecimal characters, equal exactly for equal fields."""
        return hashlib.sha256(self.manifest).hexdigest()[:_DIGEST_CHARS]

    @cached_property
    def manifest(self) -> bytes:
        """The fields as JSON in a fixed order."""
        return json.dumps(dict(self.fields), sort_keys=True, indent=1).encode()

    @classmethod
    def from_manifest(cls, content: bytes | str) -> Namespace | None:
        """The namespace a manifest describes; None if it is not a manifest."""
        try:
            fields = json.loads(content)
        except ValueError:
            return None
        if not isinstance(fields, dict):
            return None
        return cls({str(name): str(value) for name, value in fields.items()})

    def differences(self, other: Namespace) -> list[str]:
        """The names of the fields in which two namespaces differ."""
        names = self.fields.keys() | other.fields.keys()
        return sorted(n for n in names if self.fields.get(n) != other.fields.get(n))


def explain_misses(own: Namespace, others: Iterable[Namespace]) -> str | None:
    """Why nothing of what a tier holds can be used here: the nearest other namespace's differences.

    None if there is no other namespace.
    """
    nearest = min((own.differences(other) for other in others), key=len, default=None)
    return None if nearest is None else ", ".join(nearest)
