"""What was done and by whom (the audit), and what was told to whom (notices)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from dash import Dash, dcc, html
from dash.development.base_component import Component

from autotune.core.notices import Notice
from autotune.core.promotions import AuditEntry
from autotune.service_ports import Desks
from dashboards.web.parts import configs, live, notes
from dashboards.web.parts.states import badge
from dashboards.web.parts.tables import Column, table
from dashboards.web.parts.words import when
from dashboards.web.routing import Asked, Page

LATEST = 200
SOON_S = 3600.0


# ------------------------------------------------------------------------------------------ audit
def audit(_desks: Desks, _asked: Asked) -> Component:
    return html.Div([html.H1("Audit", tabIndex=-1), live.place("audit", every_ms=5000)])


def register_audit(dash_app: Dash, desks: Desks) -> None:
    live.watch(
        dash_app, desks, "audit", lambda d, _: d.promotions.audit(limit=LATEST), _audit_listed
    )


def _audit_listed(found: Sequence[AuditEntry]) -> list[Component | None]:
    return [audit_listed(found), notes.newest(found, LATEST)]


def audit_listed(found: Sequence[AuditEntry]) -> Component:
    if not found:
        return notes.empty(
            "Nothing was done yet.",
            "Promotions, rollbacks, schedules and tokens leave a line here.",
        )
    columns = (
        Column(key="at", title="When"),
        Column(key="who", title="Who"),
        Column(key="action", title="Did"),
        Column(key="subject", title="To what"),
        Column(key="why", title="Why"),
    )
    return table("audit", "Audit", columns, [_folded(steps) for steps in _folds(found)])


def _folds(found: Sequence[AuditEntry]) -> list[list[AuditEntry]]:
    """Newest first. A promotion leaves one step after another, with others' in between: those that
    follow one another soon stand together."""
    folds: list[list[AuditEntry]] = []
    latest: dict[str, list[AuditEntry]] = {}
    for entry in found:
        fold = latest.get(entry.subject)
        if fold is not None and fold[-1].at - entry.at <= SOON_S:
            fold.append(entry)
            continue
        folds.append([entry])
        if entry.subject.startswith("promotion "):
            latest[entry.subject] = folds[-1]
    return folds


def _folded(steps: Sequence[AuditEntry]) -> dict[str, Any]:
    """Newest first; the last step says how it stands, and the others are below it."""
    last = steps[0]
    why = next((entry.why for entry in steps if entry.why), "") or "–"
    diff = next((entry for entry in steps if entry.diff), last)
    return {
        "at": when(last.at),
        "who": ", ".join(dict.fromkeys(entry.who for entry in steps)),
        "action": _DID.get(last.action, last.action),
        "subject": _subject(last.subject),
        "why": [why, _difference(diff), _steps(steps) if len(steps) > 1 else None],
    }


_DID = {"done": "put into service"}
"""What a promotion's steps are called that say little by themselves."""


def _steps(steps: Sequence[AuditEntry]) -> Component:
    lines = [
        html.Li(
            [
                when(entry.at),
                f" {entry.who}: {entry.action}" + (f" ({entry.why})" if entry.why else ""),
            ]
        )
        for entry in reversed(steps)
    ]
    return html.Details(
        [html.Summary(f"its {len(steps)} steps"), html.Ul(lines, className="reasons")]
    )


_PAGES = {"promotion": "/promotions/", "schedule": "/schedules/", "model": "/models/"}


def _subject(subject: str) -> Any:
    kind, _, name = subject.partition(" ")
    if kind not in _PAGES or not name:
        return subject
    return dcc.Link(subject, href=_PAGES[kind] + quote(name, safe=""))


def _difference(entry: AuditEntry) -> Component | None:
    if not entry.diff:
        return None
    return html.Details(
        [html.Summary("the difference"), configs.diff(entry.diff, "The difference")]
    )


# ---------------------------------------------------------------------------------------- notices
def notices(_desks: Desks, _asked: Asked) -> Component:
    return html.Div([html.H1("Notices", tabIndex=-1), live.place("notices", every_ms=5000)])


def register_notices(dash_app: Dash, desks: Desks) -> None:
    live.watch(dash_app, desks, "notices", lambda d, _: d.notices(), notices_listed)


def notices_listed(found: Sequence[Notice]) -> Component:
    if not found:
        return notes.empty(
            "No notice was sent yet.",
            "A better configuration, drift, an SLA that is lost and failures are told by webhook or"
            " e-mail, once one is set up: ",
            notes.command("AUTOTUNE_WEBHOOK_URL"),
        )
    columns = (
        Column(key="title", title="Notice"),
        Column(key="event", title="Event"),
        Column(key="state", title="State"),
        Column(key="channel", title="To"),
        Column(key="at", title="When"),
    )
    return table("notices", "Notices", columns, [_notice(notice) for notice in found])


def _notice(notice: Notice) -> dict[str, Any]:
    tries = f" after {notice.attempts} tries" if notice.attempts > 1 else ""
    wrong = html.Small(f" {notice.error}", className="quiet") if notice.error else None
    return {
        "title": html.Details(
            [html.Summary(notice.title), html.P(notice.text, className="said-text")]
        ),
        "event": badge(notice.event),
        "state": [badge(notice.state), tries, wrong],
        "channel": notice.channel,
        "at": when(notice.sent_at or notice.created_at),
    }


AUDIT = Page(path="/audit", title="Audit", layout=audit, register=register_audit, nav="Audit")
NOTICES = Page(
    path="/notices", title="Notices", layout=notices, register=register_notices, nav="Notices"
)
