"""Promotions: what waits for approval, what is in service, what was; each with its difference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from dash import Dash, dcc, html
from dash.development.base_component import Component

from autotune.core.errors import InputRefused
from autotune.core.promotions import Promotion, PromotionState
from autotune.service_ports import Desks
from dashboards.web.identity import may_operate
from dashboards.web.pages.jobs import queued
from dashboards.web.pages.run import candidate_words
from dashboards.web.parts import cards, configs, live, notes
from dashboards.web.parts.acts import WHY, Act, Question, button
from dashboards.web.parts.states import badge
from dashboards.web.parts.tables import Column, table
from dashboards.web.parts.words import aria, when
from dashboards.web.routing import Asked, Page

LATEST = 200
WAITING = (PromotionState.PROPOSED, PromotionState.APPROVED, PromotionState.APPLYING)


# ------------------------------------------------------------------------------------------- list
def layout(_desks: Desks, _asked: Asked) -> Component:
    return html.Div([html.H1("Promotions", tabIndex=-1), live.place("promotions")])


def register(dash_app: Dash, desks: Desks) -> None:
    live.watch(
        dash_app, desks, "promotions", lambda d, _: d.promotions.promotions(limit=LATEST), listed
    )


def listed(found: Sequence[Promotion]) -> list[Component]:
    if not found:
        return [
            notes.empty(
                "Nothing was proposed yet.",
                "Propose a trial on its page, have a schedule of the policy propose do so, or: ",
                notes.command("autotune promote STUDY --target REPOSITORY --propose"),
            )
        ]
    waiting = [each for each in found if each.state in WAITING]
    decided = [each for each in found if each.state not in WAITING]
    nothing = notes.empty("Nothing waits.", "What is proposed stands here until it is decided on.")
    return [
        cards.section(
            "Waiting", promotions_table(waiting, "waiting") if waiting else nothing, name="waiting"
        ),
        *(
            [cards.section("Decided", promotions_table(decided, "decided"), name="decided")]
            if decided
            else []
        ),
        *filter(None, [notes.newest(found, LATEST)]),
    ]


def promotions_table(found: Sequence[Promotion], name: str) -> Component:
    columns = (
        Column(key="what", title="Promotion"),
        Column(key="state", title="State"),
        Column(key="candidate", title="Candidate"),
        Column(key="target", title="Target"),
        Column(key="why", title="Why"),
        Column(key="at", title="When"),
    )
    return table(name, "Promotions", columns, [_row(each) for each in found])


def _row(each: Promotion) -> dict[str, Any]:
    state = "in service" if each.state is PromotionState.DONE else str(each.state)
    who = each.decided_by or each.created_by
    at = each.applied_at or each.decided_at or each.created_at
    return {
        "what": [
            dcc.Link(f"{each.model} #{each.id}", href=f"/promotions/{each.id}"),
            html.Small(f"trial {each.trial} of study {each.study_id}", className="quiet under"),
        ],
        "state": badge(state.replace(" ", "_")),
        "candidate": candidate_words(each.candidate),
        "target": str(each.target),
        "why": each.reason or each.why,
        "at": [when(at or None), html.Small(f" {who}", className="quiet")],
    }


# ------------------------------------------------------------------------------------------- one
def one(desks: Desks, asked: Asked) -> Component:
    found = desks.promotions.promotion(_id(asked["promotion"]))
    return html.Div(
        [
            html.Nav(
                [dcc.Link("Promotions", href="/promotions"), f" / {found.id}"],
                className="eyebrow",
                **aria(label="Where this is"),
            ),
            live.place("promotion", found.id, first=told(found)),
        ]
    )


def register_one(dash_app: Dash, desks: Desks) -> None:
    live.watch(dash_app, desks, "promotion", lambda d, on: d.promotions.promotion(int(on)), told)


def told(found: Promotion) -> list[Component | None]:
    return [
        html.Div(
            [
                html.H1(f"Promotion {found.id} of {found.model}", tabIndex=-1),
                badge("in_service" if found.state is PromotionState.DONE else found.state),
            ],
            className="title",
        ),
        html.P(_answer(found), className=f"answer {_KINDS.get(found.state, '')}"),
        _acts(found),
        html.Section(cards.facts(_facts(found)), **aria(label="The promotion")),
        cards.section("What it changes", _diff(found), name="diff"),
        _checked(found),
    ]


_KINDS = {
    PromotionState.DONE: "good",
    PromotionState.FAILED: "bad",
    PromotionState.ROLLED_BACK: "bad",
}
_SAID = {
    PromotionState.PROPOSED: "It waits for approval; nothing is changed before.",
    PromotionState.APPROVED: "It was approved, and waits for the worker.",
    PromotionState.APPLYING: "It is being put into service.",
    PromotionState.DONE: "It is in service.",
    PromotionState.REJECTED: "It was rejected.",
    PromotionState.FAILED: "It could not be put into service; what was before is.",
    PromotionState.SUPERSEDED: "A later one has taken its place.",
    PromotionState.ROLLED_BACK: "It was rolled back; what was in service before is again.",
}


def _answer(found: Promotion) -> str:
    return _SAID[found.state] + (f" {_sentence(found.reason)}" if found.reason else "")


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def _acts(found: Promotion) -> Component | None:
    shown: list[Any] = []
    if found.state is PromotionState.PROPOSED:
        shown = [
            button("approve", found.id, "Approve …", main=True),
            button("reject", found.id, "Reject …"),
        ]
        if not may_operate():
            role = "Whoever has a token of the role operate may approve or reject it."
            return html.P(role, className="quiet")
    elif found.state is PromotionState.DONE:
        shown = [button("roll-back", found.model, "Roll back …")]
    return html.Div(shown, className="actions") if any(shown) else None


def _facts(found: Promotion) -> list[tuple[str, Any]]:
    trial = f"/study/{found.study_id}/trial/{found.trial}"
    rows: list[tuple[str, Any]] = [
        ("model", dcc.Link(found.model, href=f"/models/{quote(found.model, safe='')}")),
        ("target", str(found.target)),
        ("what", dcc.Link(f"trial {found.trial} of study {found.study_id}", href=trial)),
        ("candidate", candidate_words(found.candidate)),
        ("why", found.why or "–"),
        ("proposed", [when(found.created_at or None), f" by {found.created_by or 'someone'}"]),
    ]
    if found.decided_at is not None:
        rows.append(("decided", [when(found.decided_at), f" by {found.decided_by}"]))
    if found.applied_at is not None:
        rows.append(("in service since", when(found.applied_at)))
    if found.kept:
        rows.append(("replaced files", html.Code(found.kept)))
    return rows


def _diff(found: Promotion) -> Component:
    if not found.diff:
        return html.P("No difference was recorded.", className="quiet")
    return configs.diff(found.diff, "From what is in service to what is promoted")


def _checked(found: Promotion) -> Component | None:
    check = found.detail.get("check")
    if not isinstance(check, Mapping) or not check:
        return None
    rows = [
        (name.replace("_", " "), str(value))
        for name, value in check.items()
        if not isinstance(value, Mapping | list)
    ]
    return cards.section("Checked in service", cards.facts(rows), name="check") if rows else None


# ------------------------------------------------------------------------------------------- acts
def _id(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise InputRefused("a promotion is named by its number", value=text)
    return int(text)


def _waiting(desks: Desks, on: str) -> Promotion:
    found = desks.promotions.promotion(_id(on))
    if found.state is not PromotionState.PROPOSED:
        raise InputRefused(f"promotion {found.id} is {found.state}: it was decided on already")
    return found


def puts_the_first_there(diff: str) -> bool:
    """Whether a difference has nothing on its older side: nothing was there."""
    heads = [line for line in diff.splitlines() if line.startswith("--- ")]
    return bool(heads) and all(line.startswith("--- /dev/null") for line in heads)


def _ask_approve(desks: Desks, on: str) -> Question:
    found = _waiting(desks, on)
    shadow = (
        " Its SLA is checked there, and it is rolled back if it misses it."
        if found.target.live and found.target.shadow_s
        else ""
    )
    which = f"Trial {found.trial} of study {found.study_id}"
    says, kept = f"{which} replaces what is in service at ", " What it replaces is kept."
    if puts_the_first_there(found.diff):
        says, kept = f"{which} is put into service, where nothing of its model is yet, at ", ""
    return Question(
        title=f"Put {found.model} into service",
        says=[
            html.P([says, html.Strong(str(found.target)), f".{shadow}{kept}"]),
            configs.diff(found.diff, "What it changes"),
        ],
        yes="Approve, and put it into service",
        grave=True,
    )


def _approve(desks: Desks, on: str, _given: Mapping[str, str], by: str) -> Any:
    return queued(desks.promotions.approve(_id(on), by=by))


def _ask_reject(desks: Desks, on: str) -> Question:
    found = _waiting(desks, on)
    return Question(
        title=f"Reject promotion {found.id} of {found.model}",
        says=[
            html.P("What is in service stays. The same configuration is not promoted by itself.")
        ],
        fields=(WHY,),
        yes="Reject it",
    )


def _reject(desks: Desks, on: str, given: Mapping[str, str], by: str) -> Any:
    found = desks.promotions.reject(_id(on), why=given.get("why", ""), by=by)
    return f"Promotion {found.id} is {found.state}."


def _ask_roll_back(desks: Desks, on: str) -> Question:
    history = desks.promotions.history(on)
    champion = next((c for c in history.champions if c.state is PromotionState.DONE), None)
    if champion is None:
        raise InputRefused(f"nothing of {on} that was promoted is in service")
    return Question(
        title=f"Roll back {on}",
        says=[
            html.P(
                [
                    f"Promotion {champion.id} (trial {champion.trial} of study {champion.study_id})"
                    " is taken out of service at ",
                    html.Strong(str(champion.target)),
                    "; what it replaced is in service again.",
                ]
            )
        ],
        fields=(WHY,),
        yes="Roll back now",
        grave=True,
    )


def _roll_back(desks: Desks, on: str, given: Mapping[str, str], by: str) -> Any:
    return queued(desks.promotions.roll_back(on, why=given.get("why", ""), by=by))


ACTS = {
    "approve": Act(ask=_ask_approve, do=_approve),
    "reject": Act(ask=_ask_reject, do=_reject),
    "roll-back": Act(ask=_ask_roll_back, do=_roll_back),
}

PAGE = Page(
    path="/promotions",
    title="Promotions",
    layout=layout,
    register=register,
    nav="Promotions",
    acts=ACTS,
)
ONE = Page(path="/promotions/{promotion}", title="Promotion", layout=one, register=register_one)
