"""What an answer means, and when the next request may be made."""

import pytest

from agentkv.client.delivery import Limits, Outlook, Verdict, judge

LIMITS = Limits(max_backoff_s=4, recheck_s=300)


@pytest.mark.parametrize(
    ("status", "verdict"),
    [
        (200, Verdict.TAKEN),
        (202, Verdict.TAKEN),
        (307, Verdict.ABSENT),
        (400, Verdict.FAULTY),
        (401, Verdict.REFUSED),
        (403, Verdict.REFUSED),
        (404, Verdict.ABSENT),
        (405, Verdict.ABSENT),
        (413, Verdict.FAULTY),
        (422, Verdict.FAULTY),
        (429, Verdict.LATER),
        (500, Verdict.LATER),
        (503, Verdict.LATER),
    ],
)
def test_the_status_says_what_to_do(status: int, verdict: Verdict) -> None:
    assert judge(status, b'{"results": [{"status": "accepted"}]}') is verdict


@pytest.mark.parametrize(
    "content",
    [b"", b"<html>hello</html>", b"[]", b"{}", b'{"results": [{"status": "unsupported"}]}'],
)
def test_success_without_results_is_not_agentkv(content: bytes) -> None:
    assert judge(200, content) is Verdict.ABSENT


def test_an_unknown_session_is_an_answer() -> None:
    content = b'{"results": [{"status": "unknown"}, {"status": "unsupported"}]}'
    assert judge(200, content) is Verdict.TAKEN


def test_a_failing_server_is_tried_less_and_less_often_up_to_a_limit() -> None:
    outlook = Outlook(LIMITS)
    waits_s = []
    for _ in range(6):
        outlook.note(Verdict.LATER, now_s=100.0)
        waits_s.append(outlook.wait_s(100.0))
    assert waits_s == [0.5, 1, 2, 4, 4, 4]
    assert outlook.wants_events(100.0), "what comes meanwhile is sent later"
    outlook.note(Verdict.TAKEN, now_s=104.0)
    assert outlook.wait_s(104.0) == 0
    outlook.note(Verdict.LATER, now_s=104.0)
    assert outlook.wait_s(104.0) == 0.5, "it begins anew"


@pytest.mark.parametrize("verdict", [Verdict.ABSENT, Verdict.REFUSED])
def test_a_server_that_will_not_take_events_is_left_alone_for_minutes(verdict: Verdict) -> None:
    outlook = Outlook(LIMITS)
    outlook.note(verdict, now_s=0.0)
    assert not outlook.wants_events(299.0)
    assert outlook.wants_events(300.0) and outlook.wait_s(300.0) == 0


def test_a_malformed_event_says_nothing_about_the_next() -> None:
    outlook = Outlook(LIMITS)
    outlook.note(Verdict.FAULTY, now_s=0.0)
    assert outlook.wants_events(0.0) and outlook.wait_s(0.0) == 0
