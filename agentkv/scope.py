"""The scope of a tenant: what keeps sessions of different cache salts apart.

What: one digest of vLLM's `cache_salt`. Why: the engine and the API process must come to the same
value, and neither has to keep the salt, which is a secret. Where: below everything; used by
`connectors/translate.py` for requests and by the endpoint plugin for events about them.
"""

from __future__ import annotations

import hashlib


def scope_of_salt(cache_salt: str | None) -> str:
    """The scope of requests with this salt; "" for those without one."""
    if not cache_salt:
        return ""
    return hashlib.sha256(cache_salt.encode("utf-8", "surrogatepass")).hexdigest()[:16]
