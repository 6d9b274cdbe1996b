"""`agentkv top` in a real terminal: keys, sizes, a server that goes and comes."""

from __future__ import annotations

import signal

import pytest

from .answers import many, paused, session
from .fake_server import FakeServer
from .terminal import top

QUICK = ("--interval", "0.5")
OTHER_SCREEN, BACK = "\x1b[?1049h", "\x1b[?1049l"


def test_keys_change_what_is_seen(server: FakeServer) -> None:
    server.sessions = [paused(f"s-{index:02}", float(index)) for index in range(40)]
    server.sessions.append(session("zz-runs", context_tokens=90_000))
    with top(server.url, *QUICK, width=109) as terminal:
        first = terminal.shows("engine 0", "q quit")
        assert len(first) == 24 and "s-39" not in "\n".join(first)
        terminal.press("G")
        terminal.shows("zz-runs: its turn runs", but_not="s-00 ")
        terminal.press("\x1b[Ak")
        terminal.shows("s-38: nobody waits")
        terminal.press("/zz")
        terminal.shows("filter: zz", "90k", but_not="s-38")
        terminal.press("\r")
        terminal.shows("1 of 41 sessions by return with “zz”")
        terminal.press("\x1b")
        terminal.shows("41 of 41 sessions by return")
        terminal.press("ss")
        terminal.shows("by context")
        terminal.press("g")
        terminal.until(lambda lines: any("zz-runs " in line for line in lines[:12]))
        terminal.press("q")
        assert terminal.ends() == 0 and terminal.output.count(OTHER_SCREEN) == 1
        assert terminal.output.rstrip().endswith(("\x1b[?25h", BACK)) and terminal.echoes()


def test_enter_shows_the_ledger_and_q_leads_back(server: FakeServer) -> None:
    evil = "\x1b]0;title\x07\x1b[31mred [b]x[/b]"
    server.sessions = [paused(evil)]
    with top(server.url, width=100, height=40) as terminal:
        terminal.shows("red [b]x[/b]")
        terminal.press("\r")
        terminal.shows(
            "KV of 3,000 tokens in gpu, 4,000 tokens in dram",
            "Session red [b]x[/b]: 1 pause",
            "regret",
        )
        terminal.press("q")
        terminal.shows("q quit")
        terminal.press("q")
        assert terminal.ends() == 0
        assert "\x1b]0;" not in terminal.output


def test_a_session_that_ended_meanwhile_has_no_ledger(server: FakeServer) -> None:
    with top(server.url, "--interval", "600") as terminal:
        terminal.shows("run-1")
        server.sessions = [paused("another")]
        terminal.press("\r")
        terminal.shows("knows no session 'run-1'", "another")


def test_another_size_is_drawn_at_once(server: FakeServer) -> None:
    server.sessions = many(200)
    with top(server.url, "--interval", "600") as terminal:
        assert len(terminal.shows("q quit")) == 24
        terminal.resize(200, 60)
        wide = terminal.until(lambda lines: len(lines) == 60 and "sessions by return" in lines[-1])
        assert "why" in "\n".join(wide)
        terminal.resize(60, 12)
        terminal.until(lambda lines: len(lines) == 12 and "q quit" in lines[-1])


def test_a_server_that_restarts_is_found_again(server: FakeServer) -> None:
    with top(server.url, *QUICK, width=120) as terminal:
        terminal.shows("run-1", but_not="nothing new")
        server.stop()
        terminal.shows("nothing new since", "no answer", "run-1")
        server.sessions = [paused("after")]
        server.start()
        terminal.shows("after", but_not="nothing new")


def test_a_server_that_begins_to_want_a_key_is_told_and_watched_on(server: FakeServer) -> None:
    with top(server.url, *QUICK, width=160) as terminal:
        terminal.shows("run-1")
        server.key = "secret"
        terminal.shows("it wants an API key (401)")
        server.key = None
        terminal.shows("run-1", but_not="API key")


def test_an_engine_that_does_not_answer_is_a_note(server: FakeServer) -> None:
    server.status, server.message = 503, "The engine did not answer in time."
    with top(server.url, *QUICK, width=120) as terminal:
        terminal.shows("the engine does not answer (503): The engine did", "hold 1,204")
        server.status = 200
        terminal.shows("run-1", but_not="503")


def test_without_a_keyboard_it_watches_until_it_is_told_to_end(server: FakeServer) -> None:
    with top(server.url, *QUICK, has_keyboard=False) as terminal:
        terminal.shows("run-1", "Ctrl-C quits")
        server.sessions = [paused("next")]
        terminal.shows("next")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.ends() == 0 and BACK in terminal.output


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 0)])
def test_however_it_ends_the_terminal_is_as_before(
    server: FakeServer, number: signal.Signals, status: int
) -> None:
    with top(server.url) as terminal:
        terminal.shows("run-1")
        assert not terminal.echoes()
        terminal.process.send_signal(number)
        assert terminal.ends() == status
        assert BACK in terminal.output and "Traceback" not in terminal.output
        assert terminal.echoes()


def test_nothing_is_asked_or_drawn_while_nothing_is_new(server: FakeServer) -> None:
    with top(server.url, "--interval", "600") as terminal:
        terminal.shows("q quit")
        num_pictures, num_asked = terminal.output.count("\x1b[H"), len(server.seen)
        terminal.press("\x1b[24~")  # F12 is no key of ours, but may be drawn for.
        terminal.press("q")
        assert terminal.ends() == 0
        assert terminal.output.count("\x1b[H") <= num_pictures + 1
        assert len(server.seen) == num_asked


def test_a_ledger_is_not_waited_for(server: FakeServer) -> None:
    with top(server.url, "--interval", "600") as terminal:
        terminal.shows("q quit")
        terminal.press("\rq")
        terminal.press("q")
        assert terminal.ends() == 0
