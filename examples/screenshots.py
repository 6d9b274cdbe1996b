"""Pictures of the live page and of `agentkv top`; a real server replays sessions for them.

    python examples/screenshots.py FOLDER              # starts a small vLLM server, two minutes
    python examples/screenshots.py FOLDER --url URL    # takes those of a server that runs already

Makes page.png, what a screen shows of it; 1280 and 390 px wide PNGs of all of it, light and dark,
and with the ledger entry of a pause open; top.svg. Needs `pip install playwright` and a system
`chromium` (or AGENTKV_CHROMIUM); neither a GPU nor a model.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from playwright.sync_api import Page, sync_playwright

from agentkv.demo.agents import ClientKind
from agentkv.demo.checkpoint import ModelShape, write_checkpoint
from agentkv.demo.client import RequestError
from agentkv.demo.live import ReplayBoard
from agentkv.demo.replay import play
from agentkv.demo.run import DemoSettings, plugin_config
from agentkv.demo.servers import ServerSpec, running, wait_ready
from agentkv.demo.text import recorded_sessions, training_texts
from agentkv.demo.waits import shipped_waits
from agentkv.demo.workload import PromptCounter, Workload, cap_waits, shipped_workload

SETTINGS = DemoSettings(num_sessions=24, num_agents=6, dram_bytes=16 << 20, tiers=("dram", "ssd"))
MAX_WAIT_S = 25.0
SIZES = ((1280, 900), (390, 844))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_Raw)
    parser.add_argument("folder", type=Path, help="where the pictures go")
    parser.add_argument("--url", help="a running server, such as http://localhost:8000")
    parser.add_argument("--after", type=float, default=60.0, help="seconds to watch before")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.url:
        photograph(options.url, options.folder, options.after)
        return 0
    with tempfile.TemporaryDirectory() as name, replaying(Path(name)) as url:
        photograph(url, options.folder, options.after)
    return 0


class _Raw(argparse.RawDescriptionHelpFormatter):
    pass


@contextmanager
def replaying(folder: Path) -> Iterator[str]:
    """A server that agents use until the end of the context."""
    texts = training_texts(recorded_sessions())
    tokenizer = write_checkpoint(folder / "model", texts, seed=SETTINGS.seed, shape=ModelShape())
    workload = shipped_workload(
        recorded_sessions(),
        PromptCounter(tokenizer),
        shipped_waits(),
        seed=SETTINGS.seed,
        num_sessions=SETTINGS.num_sessions,
        max_context_tokens=SETTINGS.max_context_tokens,
    )
    spec = ServerSpec(
        name="agentkv",
        model=folder / "model",
        num_gpu_blocks=SETTINGS.pool_blocks,
        block_size=SETTINGS.block_size,
        max_model_len=SETTINGS.max_model_len,
        max_num_seqs=SETTINGS.max_num_seqs,
        seed=SETTINGS.seed,
        kv_transfer=plugin_config(SETTINGS, folder),
    )
    is_over = threading.Event()
    with running([spec], folder) as servers:
        wait_ready(servers)
        agents = (servers[0].url, cap_waits(workload, MAX_WAIT_S), is_over)
        threading.Thread(target=_play, args=agents, daemon=True).start()
        try:
            yield servers[0].url
        finally:
            is_over.set()


def _play(url: str, workload: Workload, is_over: threading.Event) -> None:
    board = ReplayBoard("", workload, num_agents=SETTINGS.num_agents, ledger=None)
    try:
        play(
            url,
            workload,
            num_agents=SETTINGS.num_agents,
            max_tokens=SETTINGS.max_tokens,
            watcher=board,
            client_kind=ClientKind.TAGS,
            begin_within_s=10.0,
        )
    except (RequestError, httpx.HTTPError):
        if not is_over.is_set():  # Else it is the server that was stopped.
            raise


def photograph(url: str, folder: Path, after_s: float) -> None:
    """Watches the page for so long, then takes its pictures."""
    program = os.environ.get("AGENTKV_CHROMIUM") or shutil.which("chromium")
    if program is None:
        sys.exit("no chromium found: install it, or set AGENTKV_CHROMIUM to its path")
    arguments = ["--no-sandbox"] if os.getuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=arguments)
        page = browser.new_page()
        page.goto(f"{url.rstrip('/')}/v1/agentkv/ui")
        if key := os.environ.get("VLLM_API_KEY"):
            page.get_by_label("API key").fill(key)
            page.keyboard.press("Enter")
        time.sleep(after_s)
        _take(page, folder)
        browser.close()
    top = folder / "top.svg"
    agentkv = Path(sys.executable).with_name("agentkv")
    subprocess.run([agentkv, "top", url, "--svg", str(top)], check=True)
    print(top)


def _take(page: Page, folder: Path) -> None:
    page.locator("#window").select_option("60")
    page.emulate_media(color_scheme="light")
    page.set_viewport_size({"width": 1280, "height": 900})
    page.wait_for_timeout(300)
    _save(page, folder / "page.png", is_whole=False)
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        for width, height in SIZES:
            page.set_viewport_size({"width": width, "height": height})
            page.wait_for_timeout(300)
            _save(page, folder / f"page-{width}-{scheme}.png", is_whole=True)
    page.emulate_media(color_scheme="light")
    for width, height in SIZES:
        page.set_viewport_size({"width": width, "height": height})
        rows = page.locator("#pauses tbody tr", has_text="→")
        row = rows.first if rows.count() else page.locator("#pauses tbody tr").first
        row.get_by_role("button").click()
        page.get_by_role("dialog").get_by_role("heading", name="Costs").wait_for()
        _save(page, folder / f"page-{width}-ledger.png", is_whole=False)
        page.keyboard.press("Escape")


def _save(page: Page, path: Path, *, is_whole: bool) -> None:
    page.screenshot(path=path, full_page=is_whole)
    print(path)


if __name__ == "__main__":
    sys.exit(main())
