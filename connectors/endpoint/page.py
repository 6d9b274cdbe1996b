"""The live page: static files at /v1/agentkv/ui, in front of the check of the API key.

What: answers GET and HEAD for the page and the files in `ui/`, and lets all else pass. Why in
front: a browser cannot send a key when it opens an address; the page holds no data, asks for the
key itself, and sends it with each question. Where: put around vLLM's own middleware by `plugin`.
All addresses in the page are relative, so it works behind a proxy that adds a prefix.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send
from vllm.logger import init_logger

logger = init_logger("vllm.agentkv")

PAGE_PATH = "/v1/agentkv/ui"
_NO_PAGE = "the live page is not among the files installed here: install vllm-agentkv anew"
_FOLDER = Path(__file__).with_name("ui")
_MEDIA_TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": _POLICY,
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


Files = Mapping[str, tuple[bytes, Mapping[str, str]]]
"""Content and headers by path."""


class PageMiddleware:
    """Owned by the app."""

    def __init__(self, app: ASGIApp, files: Files) -> None:
        self._app = app
        self._files = files

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See `starlette.types.ASGIApp`."""
        response = self._respond(scope) if scope["type"] == "http" else None
        await (response or self._app)(scope, receive, send)

    def _respond(self, scope: Scope) -> Response | None:
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        if not path.startswith(PAGE_PATH) or scope["method"] not in ("GET", "HEAD"):
            return None
        if path == f"{PAGE_PATH}/":
            return RedirectResponse("../ui")  # Relative addresses count from there.
        found = self._files.get(path)
        if found is None:
            is_page = path == PAGE_PATH
            return PlainTextResponse(_NO_PAGE, status_code=404) if is_page else None
        content, headers = found
        if Headers(scope=scope).get("if-none-match") == headers["ETag"]:
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers)


def read_files() -> Files:
    """The page as installed; nothing, and a warning, if it is not: all else works without it."""
    try:
        return _read()
    except OSError as error:
        logger.warning("agentkv: %s (%s)", _NO_PAGE, error)
        return {}


def _read() -> Files:
    found: dict[str, tuple[bytes, Mapping[str, str]]] = {}
    for file in _FOLDER.iterdir():
        if file.suffix not in _MEDIA_TYPES:
            continue
        content = file.read_bytes()
        headers = {
            **_HEADERS,
            "Content-Type": f"{_MEDIA_TYPES[file.suffix]}; charset=utf-8",
            "ETag": f'"{hashlib.sha256(content).hexdigest()[:16]}"',
        }
        path = PAGE_PATH if file.name == "index.html" else f"{PAGE_PATH}/{file.name}"
        found[path] = content, headers
    if PAGE_PATH not in found:
        raise FileNotFoundError(f"{_FOLDER} has no index.html")
    return found
