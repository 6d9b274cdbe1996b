"""The live page in a real browser, before vLLM's own app and a real controller.

A missing browser is an error: a page that nobody opened was not tested.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, Page, expect

from agentkv.connectors.endpoint import mailbox
from agentkv.events import TurnTag
from agentkv.scope import scope_of_salt
from agentkv.signals import ControlReply

from .builders import FakeEngine, serving
from .ui_kit import HOSTILE, WatchedWorld, browsing, listening

pytestmark = pytest.mark.asyncio(loop_scope="module")

PAUSE_TEXT = re.compile("bash, paused at .*, predicted .*, waited .*, held, then swapped")
CONTRAST = 4.5


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with browsing() as browser:
        yield browser


@pytest_asyncio.fixture(loop_scope="module")
async def context(browser: Browser) -> AsyncIterator[BrowserContext]:
    """A fresh profile; whatever the page complains about fails the test."""
    complaints: list[str] = []
    context = await browser.new_context(viewport={"width": 1280, "height": 900})
    context.on("weberror", lambda error: complaints.append(str(error.error)))
    context.on(
        "console",
        lambda said: (
            complaints.append(said.text)
            if said.type == "error" and "Failed to load resource" not in said.text
            else None
        ),
    )
    yield context
    await context.close()
    assert complaints == []


@asynccontextmanager
async def served(
    monkeypatch: pytest.MonkeyPatch, world: WatchedWorld, *flags: str, port: int = 0
) -> AsyncIterator[str]:
    """The address of the page of a server with these sessions."""
    async with AsyncExitStack() as stack:
        found = await stack.enter_async_context(
            serving(monkeypatch, FakeEngine(answer=world.answer), flags)
        )
        yield f"{await stack.enter_async_context(listening(found.app, port))}/v1/agentkv/ui"


@pytest.fixture
def world() -> WatchedWorld:
    world = WatchedWorld()
    world.play()
    return world


async def opened(context: BrowserContext, url: str) -> Page:
    page = await context.new_page()
    await page.goto(url)
    return page


async def poll(page: Page) -> None:
    """What the page does when its tab comes to the front: it asks at once."""
    await page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")


async def hide(page: Page, *, is_hidden: bool) -> None:
    await page.evaluate(
        "hidden => Object.defineProperty(document, 'hidden', {configurable: true, value: hidden})",
        is_hidden,
    )
    await poll(page)


async def test_sessions_pauses_and_load_are_shown(
    monkeypatch: pytest.MonkeyPatch, context: BrowserContext, world: WatchedWorld
) -> None:
    async with served(monkeypatch, world) as url:
        page = await opened(context, url)
        await expect(page.get_by_role("status")).to_have_text("Live")
        await expect(page.locator("#pool-figure")).to_have_text("38 %")
        await expect(page.locator("#sessions-note")).to_contain_text("2 paused")
        lanes = page.locator("#lanes > li")
        await expect(lanes).to_have_count(3)
        back = lanes.filter(has=page.get_by_role("heading", name="back"))
        await expect(back.get_by_role("button")).to_have_count(3)
        await expect(back.get_by_role("button", name=PAUSE_TEXT)).to_be_visible()
        await expect(lanes.filter(has_text="done")).to_contain_text("ended at")
        row = page.get_by_role("row", name="search")
        await expect(row.get_by_role("cell", name="1.97 s")).to_be_visible()
        await expect(row.get_by_role("cell", name="GPU pool")).to_be_visible()
        await expect(page.get_by_role("row")).to_have_count(6)


async def test_a_pause_that_begins_and_one_that_ends_show_with_the_next_poll(
    monkeypatch: pytest.MonkeyPatch, context: BrowserContext, world: WatchedWorld
) -> None:
    async with served(monkeypatch, world) as url:
        page = await opened(context, url)
        await expect(page.locator("#lanes > li")).to_have_count(3)
        world.turn("back", range(10, 36), TurnTag(tool="lint"), gpu=384)
        world.turn("new", range(70, 75), TurnTag(tool="make", expected_wait_s=9))
        world.say("end", "new")
        mailbox.deliver(ControlReply(id=""), 0)  # As an engine would have said something.
        await page.evaluate("window.stayed = true")
        await poll(page)
        await expect(page.locator("#lanes > li")).to_have_count(4)
        await expect(page.get_by_role("button", name=re.compile("^make.*ended"))).to_be_visible()
        await expect(page.get_by_role("row", name="lint")).to_contain_text("so far")
        assert await page.evaluate("window.stayed")


async def test_names_of_users_are_text_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, context: BrowserContext, world: WatchedWorld
) -> None:
    async with served(monkeypatch, world) as url:
        page = await opened(context, url)
        await expect(page.get_by_role("heading", name=HOSTILE)).to_be_visible()
        pause = page.locator(".box.pause", has_text=HOSTILE)
        await pause.click()
        await expect(page.get_by_role("dialog")).to_contain_text("Decisions")
        await expect(page.get_by_role("dialog")).to_contain_text(f"{HOSTILE} · {HOSTILE}")
        assert await page.locator("img, script:not([src])").count() == 0
        assert await page.title() == "agentkv"


async def test_markup_is_refused_by_the_policy_even_if_the_page_made_some(
    monkeypatch: pytest.MonkeyPatch, browser: Browser, world: WatchedWorld
) -> None:
    context = await browser.new_context()
    async with served(monkeypatch, world) as url:
        page = await opened(context, url)
        refused = "() => { try { document.body.innerHTML = '<b>'; } catch (e) { return e.name; } }"
        assert await page.evaluate(refused) == "TypeError"
    await context.close()


async def test_the_keyboard_is_enough_to_find_a_pause_and_to_read_its_ledger(
    monkeypatch: pytest.MonkeyPatch, context: BrowserContext, world: WatchedWorld
) -> None:
    async with served(monkeypatch, world) as url:
        page = await opened(context, url)
        lane = page.locator("#lanes > li").filter(has=page.get_by_role("heading", name="back"))
        stops = lane.locator("button")
        await expect(lane.locator("button[tabindex='0']")).to_have_count(1)
        await page.set_viewport_size({"width": 1280, "height": 400})
        await stops.nth(2).focus()
        await page.evaluate("scrollBy(0, 20)")
        scrolled = await page.evaluate("scrollY")
        await page.keyboard.press("ArrowLeft")
        await page.keyboard.press("Home")
        await expect(stops.nth(0)).to_be_focused()
        await page.wait_for_timeout(300)  # A page that scrolls does so smoothly.
        assert await page.evaluate("scrollY") == scrolled > 0
        outline = await stops.nth(0).evaluate("e => getComputedStyle(e).outlineStyle")
        assert outline == "solid"
        await page.keyboard.press("Enter")
        dialog = page.get_by_role("dialog", name="bash · back")
        await expect(dialog).to_contain_text("after 42.5 s")
        await expect(dialog.get_by_role("listitem")).to_have_count(2)
        await expect(dialog.get_by_role("rowheader", name="in hindsight")).to_be_visible()
        await expect(dialog.get_by_role("heading", name="bash · back")).to_be_focused()
        await page.keyboard.press("Escape")
        await expect(dialog).to_be_hidden()
        await expect(stops.nth(0)).to_be_focused()


async def test_a_screen_reader_finds_landmarks_headings_and_words_for_pictures(
    monkeypatch: pytest.MonkeyPatch, context: BrowserContext, world: WatchedWorld
) -> None:
    async with served(monkeypatch, world) as url:
        page = await opened(context, url)
        await expect(page.get_by_role("banner")).to_be_visible()
        for name in ("Load", "Sessions over time", "Latest pauses"):
            await expect(page.get_by_role("region", name=name)).to_be_attached()
        await expect(
            page.get_by_role("img", name="GPU pool in use by turns, now 38 %")
        ).to_be_visible()
        await expect(page.get_by_role("list", name="Legend")).to_be_visible()
        unnamed = "[...document.querySelectorAll('button, input, select, svg')].filter(e => !(e"
        unnamed += ".textContent.trim() || e.ariaLabel || e.labels?.length)).map(e => e.outerHTML)"
        assert await page.evaluate(unnamed) == []


async def test_what_is_read_out_does_not_change_with_every_poll(
    monkeypatch: pytest.MonkeyPatch, context: BrowserContext, world: WatchedWorld
) -> None:
    async with served(monkeypatch, world) as url:
        page = await opened(context, url)
        await expect(page.locator("#lanes > li")).to_have_count(3)
        await page.evaluate(COUNT_TOLD)
        before = await page.locator("#clock").inner_text()
        await expect(page.locator("#clock")).not_to_have_text(before)
        assert await page.evaluate("window.told") == 0


async def test_a_server_with_keys_is_asked_with_the_key_of_this_tab_only(
    monkeypatch: pytest.MonkeyPatch, context: BrowserContext, world: WatchedWorld
) -> None:
    async with served(monkeypatch, world, "--api-key", "key-a") as url:
        page = await opened(context, url)
        await expect(page.get_by_role("status")).to_have_text("This server wants an API key")
        field = page.get_by_label("API key")
        await expect(field).to_be_focused()
        await field.fill("wrong")
        await page.keyboard.press("Enter")
        await expect(page.get_by_text("does not know this key")).to_be_visible()
        await field.fill("key-a")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("status")).to_have_text("Live")
        await expect(page.locator("#lanes > li")).to_have_count(3)
        await expect(field).to_be_hidden()
        await page.reload()
        await expect(page.get_by_role("status")).to_have_text("Live")
        assert await page.evaluate("localStorage.length") == 0 and not await context.cookies()
        assert "key-a" not in page.url and "key-a" not in await page.content()
        other = await opened(context, url)
        await expect(other.get_by_role("status")).to_have_text("This server wants an API key")


async def test_sessions_of_a_cache_salt_are_shown_to_who_has_it(
    monkeypatch: pytest.MonkeyPatch, context: BrowserContext, world: WatchedWorld
) -> None:
    world.arrive("r", "salted", range(90, 95), scope=scope_of_salt("red"))
    async with served(monkeypatch, world) as url:
        page = await opened(context, url)
        await expect(page.locator("#lanes > li")).to_have_count(3)
        await page.get_by_role("button", name="Access").click()
        await page.get_by_label("Cache salt").fill("red")
        await page.get_by_role("button", name="Connect").click()
        await expect(page.locator("#lanes h3")).to_have_text(["salted"])


async def test_a_restart_of_the_server_is_told_and_survived(
    monkeypatch: pytest.MonkeyPatch, context: BrowserContext, world: WatchedWorld
) -> None:
    async with served(monkeypatch, world) as url:
        page = await opened(context, url)
        await expect(page.locator("#lanes > li")).to_have_count(3)
        port = int(url.split(":")[2].split("/")[0])
    await poll(page)
    await expect(page.get_by_role("status")).to_contain_text("No answer since")
    await expect(page.locator("#lanes > li")).to_have_count(3)
    fresh = WatchedWorld(ago_s=1)
    fresh.turn("after", range(5), TurnTag(tool="make"))
    fresh.arrive("r", "back", range(10, 12))  # Of what was before, it knows nothing.
    async with served(monkeypatch, fresh, port=port):
        await poll(page)
        await expect(page.get_by_role("status")).to_have_text("Live")
        await expect(page.locator("#lanes h3")).to_have_text(["after", "back", HOSTILE, "done"])
        back = page.locator("#lanes > li", has=page.get_by_role("heading", name="back"))
        await expect(back).to_contain_text("turn runs")
        await expect(back.locator("button").nth(2)).to_have_attribute("title", re.compile("ended$"))
        await expect(page.get_by_role("row", name="make")).to_contain_text("so far")


async def test_nothing_is_asked_while_nobody_looks(
    monkeypatch: pytest.MonkeyPatch, context: BrowserContext, world: WatchedWorld
) -> None:
    async with served(monkeypatch, world) as url:
        page = await opened(context, url)
        await expect(page.locator("#lanes > li")).to_have_count(3)
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        await hide(page, is_hidden=True)
        asked.clear()  # One may have been on its way.
        await page.wait_for_timeout(2500)
        assert asked == []
        await hide(page, is_hidden=False)
        for _ in range(1200):
            if asked:
                break
            await page.wait_for_timeout(50)
        assert len(asked) == 1
        await page.get_by_role("button", name="Freeze").click()
        asked.clear()
        await poll(page)
        await page.wait_for_timeout(200)
        assert asked == []
        await expect(page.get_by_role("status")).to_have_text("Frozen")
    assert world.num_asked == 1  # Nothing happened meanwhile, and no engine was woken to say so.


async def test_behind_the_prefix_of_a_proxy_all_is_found(
    monkeypatch: pytest.MonkeyPatch, context: BrowserContext, world: WatchedWorld
) -> None:
    async with served(monkeypatch, world, "--root-path", "/prefix") as url:
        page = await opened(context, url.replace("/v1/", "/prefix/v1/"))
        await expect(page.get_by_role("status")).to_have_text("Live")
        await expect(page.locator("#lanes > li")).to_have_count(3)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
async def test_it_is_readable_in_both_schemes_and_on_narrow_screens(
    monkeypatch: pytest.MonkeyPatch,
    context: BrowserContext,
    world: WatchedWorld,
    width: int,
    scheme: Any,
) -> None:
    async with served(monkeypatch, world) as url:
        page = await context.new_page()
        await page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        await page.set_viewport_size({"width": width, "height": 844})
        await page.goto(url)
        await expect(page.locator("#lanes > li")).to_have_count(3)
        over = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert await page.evaluate(over) == 0
        assert await page.evaluate("document.getAnimations().length") == 0
        texts = "h1, h2, h3, .quiet, .figure, #status, .pause, #pauses td, #pauses .link, button"
        faint = await page.evaluate(MEASURE_CONTRAST, [texts, CONTRAST])
        assert faint == []


COUNT_TOLD = """() => {
    window.told = 0;
    const see = new MutationObserver(() => { window.told += 1; });
    const all = {subtree: true, childList: true, attributes: true, characterData: true};
    for (const e of document.querySelectorAll('[role=status], [aria-live]')) see.observe(e, all);
    for (const e of document.querySelectorAll('.pause')) {
        see.observe(e, {attributeFilter: ['aria-label']});
    }
}"""

MEASURE_CONTRAST = """([selector, least]) => {
    const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
    const light = (c) => c.slice(0, 3).map((v) => v / 255)
        .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
        .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
    const isClear = (c) => c.length === 4 && c[3] === 0;
    const grounds = (e) => {
        for (let each = e; each; each = each.parentElement) {
            const style = getComputedStyle(each);
            const painted = style.backgroundImage.match(/rgb\\([^)]*\\)/g);
            if (painted) return painted.map(rgb);
            if (!isClear(rgb(style.backgroundColor))) return [rgb(style.backgroundColor)];
        }
        return [[255, 255, 255]];
    };
    const faint = [];
    for (const e of document.querySelectorAll(selector)) {
        if (!e.checkVisibility() || !e.textContent.trim() || e.closest('.over')) continue;
        const ink = light(rgb(getComputedStyle(e).color));
        for (const ground of grounds(e).map(light)) {
            const ratio = (Math.max(ink, ground) + 0.05) / (Math.min(ink, ground) + 0.05);
            if (ratio < least) faint.push(`${e.tagName} ${e.className}: ${ratio.toFixed(2)}`);
        }
    }
    return faint;
}"""
