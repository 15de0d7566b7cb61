"""Notices, from the outbox to servers that listen: what arrives, what waits, what is hidden."""

from __future__ import annotations

import logging
import smtplib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from filelock import FileLock

from autotune.adapters.notify import Email, Persistent, Webhook
from autotune.bootstrap.notices import ATTEMPTS, deliver_waiting, due_at, notify
from autotune.core.errors import DeliveryFailed, DeliveryRefused
from autotune.core.notices import Event, Notice, NoticeState
from autotune.settings import NotifySettings, Settings
from storage.service import ServiceStore
from tests.listening import SECRET, Mail, Web, mail, web

PASSWORD = "correct-horse"
NOTICE = Notice(
    id=3,
    event=Event.BETTER,
    title="ocr: a better configuration <was> found",
    text="What: trial 7 & more.\nNext: nothing.",
    channel="webhook",
    created_at=1_700_000_000.0,
    payload={"study": 41},
)


@pytest.fixture
def http() -> Iterator[Web]:
    with web() as seen:
        yield seen


@pytest.fixture
def smtp() -> Iterator[Mail]:
    with mail() as seen:
        yield seen


def email_to(server: Mail, **changes: object) -> Email:
    options = {"sender": "autotune@example.org", "to": ("ops@example.org",), **changes}
    return Email(server=server.url, **options)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------- webhook
def test_a_webhook_is_posted_what_slack_shows_and_programs_read(http: Web) -> None:
    Webhook(url=http.url).deliver(NOTICE)
    ((path, body),) = http.posted
    assert path.endswith(SECRET)
    assert body["text"] == (
        "*ocr: a better configuration &lt;was&gt; found*\nWhat: trial 7 &amp; more.\nNext: nothing."
    )
    assert (body["event"], body["payload"]) == ("better", {"study": 41})


@pytest.mark.parametrize("status", [500, 503, 429, 408])
def test_an_answer_that_may_change_is_asked_for_again(http: Web, status: int) -> None:
    http.statuses = [status, status]
    waits: list[float] = []
    Persistent(channel=Webhook(url=http.url), sleep=waits.append).deliver(NOTICE)
    assert len(http.posted) == 3
    assert len(waits) == 2


@pytest.mark.parametrize("status", [400, 403, 404, 410])
def test_an_answer_that_will_not_change_is_asked_for_once(http: Web, status: int) -> None:
    http.statuses = [status] * 5
    with pytest.raises(DeliveryRefused, match=f"answered {status}"):
        Persistent(channel=Webhook(url=http.url), sleep=lambda _: None).deliver(NOTICE)
    assert len(http.posted) == 1


def test_what_does_not_help_after_some_tries_is_left_for_later(http: Web) -> None:
    http.statuses = [500] * 5
    with pytest.raises(DeliveryFailed):
        Persistent(channel=Webhook(url=http.url), sleep=lambda _: None).deliver(NOTICE)
    assert len(http.posted) == 3


@pytest.mark.parametrize("status", [301, 307, 308])
def test_a_redirect_is_not_followed(http: Web, status: int) -> None:
    with web() as elsewhere:
        http.statuses, http.location = [status], elsewhere.url
        with pytest.raises(DeliveryRefused, match="redirect"):
            Webhook(url=http.url).deliver(NOTICE)
        assert elsewhere.posted == []


def test_a_webhook_that_does_not_answer_is_given_up_for_now(http: Web) -> None:
    http.slow_s = 1.0
    with pytest.raises(DeliveryFailed, match=r"within 0\.1 s") as failed:
        Webhook(url=http.url, timeout_s=0.1).deliver(NOTICE)
    assert not isinstance(failed.value, DeliveryRefused)


@pytest.mark.parametrize(
    "url", [f"http://127.0.0.1:9/{SECRET}", f"ftp://here/{SECRET}", f"http://[{SECRET}", SECRET]
)
def test_no_words_and_no_log_hold_the_address(url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    channel = Webhook(url=url)
    with pytest.raises(DeliveryFailed) as failed:
        channel.deliver(NOTICE)
    assert SECRET not in f"{failed.value} {channel!r} {caplog.text}"


def test_no_log_holds_the_address_of_what_arrived(
    http: Web, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    Webhook(url=http.url).deliver(NOTICE)
    assert SECRET not in caplog.text


# --------------------------------------------------------------------------------------- e-mail
def test_an_email_arrives(smtp: Mail) -> None:
    email_to(smtp, to=("ops@example.org", "Me <me@example.org>")).deliver(NOTICE)
    (message,) = smtp.took
    assert message["Subject"] == NOTICE.title
    assert message["To"] == "ops@example.org, Me <me@example.org>"
    assert message["Auto-Submitted"] == "auto-generated"
    assert message.get_payload().rstrip() == NOTICE.text  # type: ignore[union-attr]
    assert smtp.commands.count("RCPT") == 2


def test_the_same_notice_has_the_same_message_id(smtp: Mail) -> None:
    for _ in range(2):
        email_to(smtp).deliver(NOTICE)
    first, second = smtp.took
    assert first["Message-ID"] == second["Message-ID"]


def test_it_logs_in_where_it_has_a_name(smtp: Mail) -> None:
    smtp.login = ("me", PASSWORD)
    email_to(smtp).deliver(NOTICE)
    assert "AUTH" in smtp.commands


def test_a_refused_login_is_told_without_the_password(smtp: Mail) -> None:
    smtp.login = ("me", PASSWORD)
    channel = email_to(smtp)
    smtp.login = ("me", "another")
    with pytest.raises(DeliveryRefused, match="refused the login") as refused:
        channel.deliver(NOTICE)
    assert PASSWORD not in f"{refused.value} {channel!r}"


def test_no_password_goes_out_in_the_clear(smtp: Mail, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a host's name that is not this machine's own, as far as can be seen."""
    real = smtplib.SMTP
    monkeypatch.setattr(
        smtplib, "SMTP", lambda _host, _port, **options: real("127.0.0.1", smtp.port, **options)
    )
    channel = Email(
        server=f"smtp://me:{PASSWORD}@mail.example.org",
        sender="autotune@example.org",
        to=("ops@example.org",),
    )
    with pytest.raises(DeliveryRefused, match="no encryption"):
        channel.deliver(NOTICE)
    assert "AUTH" not in smtp.commands


@pytest.mark.parametrize(
    ("command", "reply", "lasting"),
    [
        ("RCPT", "550 who", True),
        ("RCPT", "450 later", False),
        ("MAIL", "553 not you", True),
        ("DATA", "451 later", False),
    ],
)
def test_a_refused_message_is_given_up_or_left_for_later_as_the_server_says(
    smtp: Mail, command: str, reply: str, lasting: bool
) -> None:
    smtp.replies[command] = reply
    with pytest.raises(DeliveryFailed) as failed:
        email_to(smtp).deliver(NOTICE)
    assert isinstance(failed.value, DeliveryRefused) is lasting


def test_an_address_that_is_not_taken_beside_others_is_told_in_the_log_without_its_name(
    smtp: Mail, caplog: pytest.LogCaptureFixture
) -> None:
    smtp.unknown = "gone@example.org"
    email_to(smtp, to=("ops@example.org", "gone@example.org")).deliver(NOTICE)
    assert len(smtp.took) == 1
    assert "no mail for 1 of the 2 addresses" in caplog.text
    assert "gone@" not in caplog.text


def test_a_mail_server_that_is_not_there_is_tried_again() -> None:
    with pytest.raises(DeliveryFailed, match="could not be reached") as failed:
        email_to(Mail(port=9)).deliver(NOTICE)
    assert not isinstance(failed.value, DeliveryRefused)


@pytest.mark.parametrize(
    ("sender", "to"),
    [("nobody", ("a@b.org",)), ("a@b.org", ()), ("a@b.org", ("c@d.org\nBcc: e@f.org",))],
)
def test_addresses_that_are_none_are_refused(smtp: Mail, sender: str, to: tuple[str, ...]) -> None:
    with pytest.raises(DeliveryRefused, match="AUTOTUNE_MAIL"):
        email_to(smtp, sender=sender, to=to).deliver(NOTICE)
    assert smtp.took == []


# --------------------------------------------------------------------------------------- outbox
class Outbox:
    """The store's, with the settings of a webhook and a mail server."""

    def __init__(self, folder: Path, http: Web, smtp: Mail) -> None:
        self.clock_s = 1000.0
        self.store = ServiceStore(str(folder / "autotune.db"), now=lambda: self.clock_s)
        self.settings = Settings(
            cache_dir=folder,
            work_dir=folder,
            database="",
            service_dir=folder / "service",
            notify=NotifySettings(
                webhook=http.url, smtp=smtp.url, mail_from="a@b.org", mail_to=("c@d.org",)
            ),
        )

    def notify(self, text: str = "what it is") -> None:
        notify(
            self.store.notices,
            Event.DRIFT,
            "title",
            text,
            {"why": text, "value": float("nan")},
            settings=self.settings.notify,
        )

    def deliver(self) -> int:
        return deliver_waiting(
            self.store.notices,
            settings=self.settings,
            now=lambda: self.clock_s,
            sleep=lambda _: None,
        )

    def states(self) -> dict[str, NoticeState]:
        return {notice.channel: notice.state for notice in self.store.notices.notices()}


@pytest.fixture
def outbox(tmp_path: Path, http: Web, smtp: Mail) -> Iterator[Outbox]:
    made = Outbox(tmp_path, http, smtp)
    yield made
    made.store.close()


def test_a_notice_goes_by_every_channel(outbox: Outbox, http: Web, smtp: Mail) -> None:
    outbox.notify()
    assert outbox.deliver() == 2
    assert (len(http.posted), len(smtp.took)) == (1, 1)
    assert set(outbox.states().values()) == {NoticeState.SENT}
    assert outbox.deliver() == 0


def test_where_no_channel_is_configured_a_notice_is_kept_and_does_not_wait(outbox: Outbox) -> None:
    notify(outbox.store.notices, Event.DRIFT, "t", "x", {}, settings=NotifySettings())
    assert outbox.store.notices.waiting() == []
    (kept,) = outbox.store.notices.notices()
    assert (kept.channel, kept.state) == ("none", NoticeState.FAILED)
    assert kept.error == "not sent: no channel is configured"


def test_what_did_not_arrive_is_tried_again_later_and_not_at_once(
    outbox: Outbox, http: Web
) -> None:
    http.statuses = [500] * 3
    outbox.notify()
    outbox.deliver()
    assert outbox.states()["webhook"] is NoticeState.WAITING
    assert outbox.deliver() == 0
    outbox.clock_s += 61
    assert outbox.deliver() == 1
    assert outbox.states()["webhook"] is NoticeState.SENT


def test_the_waits_double_and_there_is_an_end_to_them(outbox: Outbox, http: Web) -> None:
    http.statuses = [500] * 100
    outbox.notify()
    for _ in range(ATTEMPTS):
        outbox.deliver()
        waiting = outbox.store.notices.waiting()
        outbox.clock_s = max(map(due_at, waiting), default=outbox.clock_s)
    (notice,) = [n for n in outbox.store.notices.notices() if n.channel == "webhook"]
    assert (notice.state, notice.attempts) == (NoticeState.FAILED, ATTEMPTS)
    assert "answered 500" in notice.error
    assert outbox.clock_s == 1000.0 + 60 * (2 ** (ATTEMPTS - 1) - 1)


def test_a_channel_that_is_not_configured_any_more_gives_its_notices_up(outbox: Outbox) -> None:
    outbox.notify()
    quiet = NotifySettings(webhook=outbox.settings.notify.webhook)
    outbox.settings = Settings(
        cache_dir=outbox.settings.cache_dir,
        work_dir=outbox.settings.work_dir,
        database="",
        service_dir=outbox.settings.service_dir,
        notify=quiet,
    )
    assert outbox.deliver() == 1
    assert outbox.states()["email"] is NoticeState.FAILED


def test_nothing_secret_is_stored_whatever_is_told(outbox: Outbox, http: Web) -> None:
    http.statuses = [404]
    outbox.notify(f"could not reach {http.url}: {SECRET}")
    outbox.deliver()
    stored = repr(outbox.store.notices.notices())
    assert http.url not in stored
    assert f"/{SECRET}" not in stored


def test_a_channel_that_takes_nothing_holds_up_no_other_and_is_asked_once_for_all_that_waits(
    outbox: Outbox, http: Web, smtp: Mail
) -> None:
    """The mail arrives while the webhook's answer is waited for: else nobody lets that go on."""
    http.statuses = [500] * 100
    mail_is_there = threading.Event()
    for _ in range(3):
        outbox.notify()

    def wait(_: float) -> None:
        while len(smtp.took) < 3:
            time.sleep(0.01)
        mail_is_there.set()

    delivered = deliver_waiting(
        outbox.store.notices, settings=outbox.settings, now=lambda: outbox.clock_s, sleep=wait
    )
    assert (delivered, mail_is_there.is_set(), len(http.posted)) == (3, True, 3)
    attempts = [n.attempts for n in outbox.store.notices.waiting() if n.channel == "webhook"]
    assert attempts == [1, 0, 0]


def test_a_notice_says_which_machine_it_is_from(
    outbox: Outbox, smtp: Mail, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOTUNE_MACHINE", "gpu-node-1")
    outbox.notify()
    outbox.deliver()
    (message,) = smtp.took
    assert message.get_payload().rstrip().endswith("From: autotune on gpu-node-1.")  # type: ignore[union-attr]
    (notice, _) = outbox.store.notices.notices()
    assert notice.payload["host"] == "gpu-node-1"


def test_two_processes_do_not_deliver_at_once(outbox: Outbox, http: Web) -> None:
    outbox.notify()
    folder = outbox.settings.service_dir
    folder.mkdir()
    with FileLock(folder / "notices.lock"):
        assert outbox.deliver() == 0
    assert http.posted == []
