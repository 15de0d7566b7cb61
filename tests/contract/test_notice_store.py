"""What every NoticeStore does."""

from __future__ import annotations

import math

import pytest

from autotune.core.errors import InputRefused
from autotune.core.notices import Event, NoticeState
from autotune.service_ports import NoticeStore
from storage.service import ServiceStore
from tests.contract.conftest import Clock


@pytest.fixture
def notices(service: ServiceStore) -> NoticeStore:
    return service.notices


@pytest.fixture
def others(again: ServiceStore) -> NoticeStore:
    return again.notices


def _added(notices: NoticeStore, title: str = "drift") -> int:
    return notices.add(Event.DRIFT, title, "p95 9% higher\né", {"effect": math.inf}, "webhook")


def test_a_notice_waits_as_it_was_added(notices: NoticeStore, others: NoticeStore) -> None:
    notice_id = _added(notices)
    (notice,) = others.waiting()
    assert (notice.id, notice.event, notice.title, notice.text, notice.channel) == (
        notice_id,
        Event.DRIFT,
        "drift",
        "p95 9% higher\né",
        "webhook",
    )
    assert (notice.payload, notice.created_at) == ({"effect": math.inf}, 1000.0)
    assert (notice.state, notice.attempts, notice.sent_at, notice.error) == (
        NoticeState.WAITING,
        0,
        None,
        "",
    )


def test_notices_wait_oldest_first_and_are_listed_newest_first(notices: NoticeStore) -> None:
    first, second = _added(notices), _added(notices)
    assert [notice.id for notice in notices.waiting()] == [first, second]
    assert [notice.id for notice in notices.notices()] == [second, first]
    assert [notice.id for notice in notices.notices(limit=1)] == [second]


def test_a_notice_that_was_sent_waits_no_longer(notices: NoticeStore, clock: Clock) -> None:
    notice_id = _added(notices)
    notices.tried(notice_id, error="timed out")
    clock.at = 1010.0
    notices.tried(notice_id, error=None)
    assert list(notices.waiting()) == []
    (notice,) = notices.notices()
    assert (notice.state, notice.attempts, notice.sent_at, notice.error) == (
        NoticeState.SENT,
        2,
        1010.0,
        "",
    )


def test_a_notice_that_failed_waits_for_another_attempt(notices: NoticeStore) -> None:
    notice_id = _added(notices)
    notices.tried(notice_id, error="timed out")
    (notice,) = notices.waiting()
    assert (notice.attempts, notice.error) == (1, "timed out")


def test_a_notice_that_was_given_up_is_kept_with_its_last_error(notices: NoticeStore) -> None:
    notice_id = _added(notices)
    notices.tried(notice_id, error="gone", give_up=True)
    assert list(notices.waiting()) == []
    (notice,) = notices.notices()
    assert (notice.state, notice.error, notice.sent_at) == (NoticeState.FAILED, "gone", None)


def test_a_notice_that_nobody_can_be_sent_does_not_wait(notices: NoticeStore) -> None:
    notices.add(Event.DRIFT, "drift", "", {}, "none", unsent="no channel")
    assert list(notices.waiting()) == []
    (kept,) = notices.notices()
    assert (kept.state, kept.attempts, kept.error) == (NoticeState.FAILED, 0, "no channel")


def test_an_unknown_notice_is_refused(notices: NoticeStore) -> None:
    with pytest.raises(InputRefused, match="no such notice"):
        notices.tried(5, error=None)
