"""Cron expressions and time zones: what is due when, and what is refused."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from autotune.adapters.scheduling import next_due, trigger
from autotune.core.errors import InputRefused

BERLIN = "Europe/Berlin"


def _after(text: str, zone: str = "UTC") -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()


def _due(cron: str, zone: str, after: str, count: int = 1) -> list[str]:
    """The next times in UTC, as a scheduler finds them: each after the one before."""
    found, at = [], _after(after)
    for _ in range(count):
        due = next_due(cron, zone, at)
        assert due is not None
        found.append(f"{datetime.fromtimestamp(due, UTC):%Y-%m-%d %H:%M}")
        at = due
    return found


def _followed(cron: str, zone: str, after: str, count: int) -> list[str]:
    """The same, as APScheduler goes from one to the next."""
    due, found = trigger(cron, zone), []
    at = due.get_next_fire_time(None, datetime.fromtimestamp(_after(after), UTC))
    for _ in range(count):
        found.append(f"{at.astimezone(UTC):%Y-%m-%d %H:%M}")
        at = due.get_next_fire_time(at, at)
    return found


# ------------------------------------------------------------------------------------- the times
def test_a_nightly_schedule_is_due_at_its_hour_in_its_zone() -> None:
    assert _due("0 2 * * *", BERLIN, "2026-01-10 12:00") == ["2026-01-11 01:00"]
    assert _due("0 2 * * *", "UTC", "2026-01-10 12:00") == ["2026-01-11 02:00"]
    assert _due("0 2 * * *", "Asia/Kolkata", "2026-01-10 12:00") == ["2026-01-10 20:30"]


def test_the_next_time_is_after_the_moment_asked_for() -> None:
    assert _due("0 2 * * *", "UTC", "2026-01-10 02:00") == ["2026-01-11 02:00"]


@pytest.mark.parametrize(
    ("weekdays", "days"),
    [
        ("0", [4]),
        ("7", [4]),
        ("sun", [4]),
        ("1", [5]),
        ("MON", [5]),
        ("1-5", [5, 6, 7, 8, 9]),
        ("mon-fri", [5, 6, 7, 8, 9]),
        ("5-7", [4, 9, 10]),
        ("sat-sun", [4, 10]),
        ("0-6", [4, 5, 6, 7, 8, 9, 10]),
        ("*/2", [4, 6, 8, 10]),
        ("1-5/2", [5, 7, 9]),
        ("tue,4", [6, 8]),
    ],
)
def test_weekdays_are_crons(weekdays: str, days: list[int]) -> None:
    expected = [f"2026-01-{day:02} 02:00" for day in days]  # the 4th is a Sunday
    assert _due(f"0 2 * * {weekdays}", "UTC", "2026-01-03 12:00", len(days)) == expected


def test_a_day_of_the_month_or_one_of_the_week_is_due_where_both_are_named() -> None:
    expected = ["2026-01-05 02:00", "2026-01-12 02:00", "2026-01-13 02:00", "2026-01-19 02:00"]
    assert _due("0 2 13 * 1", "UTC", "2026-01-04 12:00", 4) == expected
    assert _followed("0 2 13 * 1", "UTC", "2026-01-04 12:00", 4) == expected


# ------------------------------------------------------------------------- summer and winter time
@pytest.mark.parametrize("times", [_due, _followed])
def test_a_time_that_the_clock_skips_is_due_once_and_as_much_later(times: object) -> None:
    assert callable(times)
    assert times("30 2 * * *", BERLIN, "2026-03-28 00:00", 3) == [
        "2026-03-28 01:30",
        "2026-03-29 01:30",  # 03:30: there was no 02:30
        "2026-03-30 00:30",
    ]


@pytest.mark.parametrize("times", [_due, _followed])
def test_a_time_that_the_clock_shows_twice_is_due_once(times: object) -> None:
    assert callable(times)
    assert times("30 2 * * *", BERLIN, "2026-10-24 00:00", 3) == [
        "2026-10-24 00:30",
        "2026-10-25 00:30",
        "2026-10-26 01:30",
    ]


def test_where_every_hour_is_meant_both_hours_of_that_night_are() -> None:
    assert _followed("30 * * * *", BERLIN, "2026-10-25 00:00", 3) == [
        "2026-10-25 00:30",
        "2026-10-25 01:30",
        "2026-10-25 02:30",
    ]


def test_times_after_the_doubled_hour_are_not_taken_for_doubled() -> None:
    assert _followed("0 1-4 * * *", BERLIN, "2026-10-24 22:30", 5) == [
        "2026-10-24 23:00",
        "2026-10-25 00:00",
        "2026-10-25 02:00",
        "2026-10-25 03:00",
        "2026-10-26 00:00",
    ]


# --------------------------------------------------------------------------------------- refusals
@pytest.mark.parametrize("cron", ["", "@daily", "0 2 * *", "0 0 2 * * *"])
def test_anything_but_five_fields_is_refused(cron: str) -> None:
    with pytest.raises(InputRefused, match="five fields"):
        trigger(cron, "UTC")


@pytest.mark.parametrize(
    ("cron", "field"),
    [
        ("61 2 * * *", "minute"),
        ("a 2 * * *", "minute"),
        ("*/0 2 * * *", "minute"),
        ("0 25 * * *", "hour"),
        ("0 5-1 * * *", "hour"),
        ("0 2 32 * *", "day of the month"),
        ("0 2 ? * *", "day of the month"),
        ("0 2 * 13 *", "month"),
        ("0 2 * * 8", "day of the week"),
        ("0 2 * * mo", "day of the week"),
        ("0 2 * * fri-mon", "day of the week"),
        ("0 2 * * mon#1", "day of the week"),
        ("0 2 * * 1/2", "day of the week"),
        ("0 2 * * 1-5/0", "day of the week"),
    ],
)
def test_a_bad_field_is_named(cron: str, field: str) -> None:
    with pytest.raises(InputRefused, match=f"the {field} of the cron expression"):
        trigger(cron, "UTC")


def test_an_expression_that_is_never_due_is_refused() -> None:
    with pytest.raises(InputRefused, match="no day is ever due"):
        trigger("0 2 30 2 *", "UTC")


@pytest.mark.parametrize("zone", ["Berlin", "", "../etc/passwd", "Europe", "CEST"])
def test_an_unknown_zone_is_refused(zone: str) -> None:
    with pytest.raises(InputRefused, match="no such time zone"):
        trigger("0 2 * * *", zone)


def test_a_zone_that_was_meant_is_suggested() -> None:
    with pytest.raises(InputRefused) as refused:
        trigger("0 2 * * *", "Europe/Berln")
    assert "Europe/Berlin" in refused.value.next_step


def test_a_trigger_survives_its_table() -> None:
    for cron in ("30 2 * * *", "0 2 13 * 1"):
        due = trigger(cron, BERLIN)
        again = pickle.loads(pickle.dumps(due))
        now = datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
        assert again.get_next_fire_time(now, now) == due.get_next_fire_time(now, now)
