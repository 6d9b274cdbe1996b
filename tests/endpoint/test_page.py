"""The page's files: for anybody, with a strict policy, and nothing else of the server with them."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urljoin

import httpx
import pytest

import agentkv.connectors.endpoint
from agentkv.connectors.endpoint import page as page_files
from agentkv.connectors.endpoint.page import PAGE_PATH

from .builders import FakeEngine, Served
from .conftest import Serve

FOLDER = Path(agentkv.connectors.endpoint.__file__).parent / "ui"
PAGE = f"http://test{PAGE_PATH}"
KEYS = ("--api-key", "key-a")


def asset_paths(page: str) -> list[str]:
    return re.findall(r'(?:href|src)="(ui/[^"]+)"', page)


async def test_the_page_opens_without_a_key_and_what_it_shows_does_not(serve: Serve) -> None:
    served = await serve(FakeEngine(), *KEYS)
    page = await served.client.get(PAGE)
    assert page.status_code == 200 and "<h1>agentkv</h1>" in page.text
    for path in asset_paths(page.text):
        assert (await served.client.get(urljoin(PAGE, path))).status_code == 200
    for path in ("state", "live", "sessions", "ledger/s", "ui2", "ui/none.js", "ui/../state"):
        assert (await served.get(path)).status_code == 401, path
    assert (await served.client.post(PAGE)).status_code == 401
    assert (await served.get("live", "key-a")).status_code == 200


async def test_every_file_is_served_as_what_it_is_with_a_strict_policy(served: Served) -> None:
    kinds = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
    for file in FOLDER.iterdir():
        path = PAGE if file.name == "index.html" else f"{PAGE}/{file.name}"
        response = await served.client.get(path)
        assert response.content == file.read_bytes()
        kind = kinds.get(file.suffix, "text/html")
        assert response.headers["content-type"] == f"{kind}; charset=utf-8"
        assert response.headers["x-content-type-options"] == "nosniff"
        policy = response.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy


async def test_a_file_that_the_browser_has_is_not_sent_again(served: Served) -> None:
    first = await served.client.get(PAGE)
    tag = {"If-None-Match": first.headers["etag"]}
    again = await served.client.get(PAGE, headers=tag)
    assert (again.status_code, again.content) == (304, b"")
    assert (await served.client.get(f"{PAGE}/main.js", headers=tag)).status_code == 200


@pytest.mark.parametrize("has_folder", [True, False])
async def test_without_its_files_the_server_starts_and_the_page_says_why(
    serve: Serve,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    has_folder: bool,
) -> None:
    folder = tmp_path / "ui"
    if has_folder:
        folder.mkdir()
        (folder / "main.js").write_text("")
    monkeypatch.setattr(page_files, "_FOLDER", folder)
    said: list[str] = []
    monkeypatch.setattr(page_files.logger, "warning", lambda text, *rest: said.append(text % rest))
    served = await serve(FakeEngine(), *KEYS)
    response = await served.client.get(PAGE)
    assert response.status_code == 404 and "install vllm-agentkv anew" in response.text
    assert (await served.get("live", "key-a")).status_code == 200
    assert len(said) == 1 and "install vllm-agentkv anew" in said[0] and str(folder) in said[0]


async def test_a_head_request_has_no_body(served: Served) -> None:
    response = await served.client.head(PAGE)
    assert (response.status_code, response.content) == (200, b"")
    assert int(response.headers["content-length"]) == (FOLDER / "index.html").stat().st_size


async def test_a_slash_too_many_leads_to_the_page_wherever_it_is(served: Served) -> None:
    response = await served.client.get(f"{PAGE}/")
    assert response.is_redirect
    assert urljoin("http://proxy/prefix/v1/agentkv/ui/", response.headers["location"]) == (
        "http://proxy/prefix/v1/agentkv/ui"
    )


@pytest.mark.parametrize("path", ["/prefix/v1/agentkv/ui", "/v1/agentkv/ui"])
async def test_behind_a_prefix_the_page_is_there_and_its_addresses_are_relative(
    serve: Serve, path: str
) -> None:
    """Proxies may take the prefix away or leave it."""
    served = await serve(FakeEngine(), "--root-path", "/prefix", *KEYS)
    page = await served.client.get(path)
    assert page.status_code == 200
    for asset in asset_paths(page.text):
        assert (await served.client.get(urljoin(f"http://test{path}", asset))).status_code == 200


async def test_a_server_that_runs_without_agentkv_has_a_page_that_can_say_so(serve: Serve) -> None:
    served = await serve(FakeEngine(connector=None))
    assert (await served.client.get(PAGE)).status_code == 200
    refused = await served.get("live")
    assert refused.status_code == 503 and "not the KV connector" in refused.text


async def test_all_else_passes_untouched(served: Served) -> None:
    assert (await served.chat()).json()["choices"]
    assert (await served.client.get("/v1/nothing")).status_code == 404


def test_the_page_needs_nothing_from_elsewhere_and_has_no_code_in_its_markup() -> None:
    for file in FOLDER.iterdir():
        text = file.read_text(encoding="utf-8")
        addresses = set(re.findall(r"https?://[^\s\"')]+", text))
        assert addresses <= {"http://www.w3.org/2000/svg"}, file.name
        assert "innerHTML" not in text and "document.write" not in text, file.name
    page = (FOLDER / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"\son\w+=|\sstyle=|<style|<script>", page)


@pytest.fixture
async def redirecting(served: Served) -> httpx.AsyncClient:
    served.client.follow_redirects = True
    return served.client


async def test_the_page_behind_the_redirect_is_the_page(redirecting: httpx.AsyncClient) -> None:
    assert (await redirecting.get(f"{PAGE}/")).url == PAGE
