"""What people do on pages: a button, a dialog that says what will happen and may ask why, the
answer in its place.

A button names an act and what it is about (``data-act``, ``data-on``); static/acts.js opens the
dialog, whose words come from here, and sends what was given. One dialog serves all pages; a page
that shows what an act changes listens to `ACTED`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from secrets import token_hex
from typing import Any

from dash import Dash, Input, Output, State, dcc, html, no_update
from dash.development.base_component import Component

from autotune.core.access import Identity
from autotune.core.errors import AutotuneError, InputRefused
from autotune.service_ports import Desks
from dashboards.api.models import LONGEST_WORDS
from dashboards.web.identity import current, may_operate, refuse_viewers
from dashboards.web.parts import notes
from dashboards.web.parts.callbacks import answers
from dashboards.web.parts.words import aria

ASKED, GIVEN, ACTED = "act-asked", "act-given", "acted"
"""Stores: which act a button asks for; what was given in its dialog; how many were done."""
_DIALOG, _ANSWER = "act-dialog", "act-answer"
_DO: Any = {"data-do": ""}
_PLAIN = re.compile(r"[^\x00\ud800-\udfff]*")
"""What every database can keep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """Something to fill in. ``hint`` says what may stand there."""

    name: str
    title: str
    hint: str = ""
    value: str = ""
    needed: bool = False


WHY = Field(name="why", title="Why (kept in the audit)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is said before an act is done: ``title``, what will happen, what there is to fill in,
    the word on the button that does it. ``grave``: it changes what is in service, or is lost."""

    title: str
    says: Sequence[Any]
    yes: str
    fields: Sequence[Field] = ()
    grave: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """``ask`` words the question about a subject; ``do`` does it with what was filled in, for whom,
    and says what came of it. Both raise InputRefused for what cannot be."""

    ask: Callable[[Desks, str], Question]
    do: Callable[[Desks, str, Mapping[str, str], str], Any]


def button(act: str, on: object, words: str, *, about: str = "", main: bool = False) -> Any:
    """Nothing for those who may only look. ``about`` tells it from others of the same word to those
    who do not see what it stands beside."""
    if not may_operate():
        return None
    named: Any = {"data-act": act, "data-on": str(on)}
    heard = aria(label=f"{words} {about}") if about else {}
    style = "action main" if main else "action"
    return html.Button(
        words, type="button", className=style, **aria(haspopup="dialog"), **named, **heard
    )


def place() -> list[Component]:
    """What the shell holds for acts."""
    return [
        dcc.Store(id=ASKED),
        dcc.Store(id=GIVEN),
        dcc.Store(id=ACTED, data=0),
        html.Div(id=_DIALOG),
    ]


def register(dash_app: Dash, desks: Desks, acts: Mapping[str, Act]) -> None:
    @answers(dash_app, Output(_DIALOG, "children"), Input(ASKED, "data"), prevent_initial_call=True)
    def ask(asked: Mapping[str, Any] | None) -> Any:
        if not asked:
            return no_update
        try:
            question = _act(acts, asked).ask(desks, _words(asked["on"]))
        except Exception as error:  # noqa: BLE001 - the page's own place for it is behind the dialog
            return _dialog(
                asked,
                [html.H2("This cannot be done", id="act-title"), notes.failure(error), _close()],
            )
        return _dialog(asked, _asking(question))

    @answers(
        dash_app,
        Output(_ANSWER, "children"),
        Output(ACTED, "data"),
        Input(GIVEN, "data"),
        State(ACTED, "data"),
        prevent_initial_call=True,
    )
    def do(given: Mapping[str, Any] | None, done: int) -> tuple[Any, Any]:
        if not given:
            return no_update, no_update
        try:
            refuse_viewers()
            filled = {str(name): _words(value) for name, value in given["fields"].items()}
            said = _act(acts, given).do(desks, _words(given["on"]), filled, _name(current()))
        except AutotuneError as error:
            return [notes.failure(error), _once_more(desks, acts, given)], no_update
        except Exception as error:  # noqa: BLE001 - as above
            return [notes.failure(error), _close()], no_update
        return [notes.notice("Done.", html.P(said), kind="good"), _close()], done + 1


def _name(who: Identity | None) -> str:
    return "" if who is None else who.name


def _once_more(desks: Desks, acts: Mapping[str, Act], given: Mapping[str, Any]) -> Component:
    """Something else may be filled in, where it can still be done at all."""
    try:
        return _buttons(_act(acts, given).ask(desks, given["on"]))
    except AutotuneError:
        return _close()


def _act(acts: Mapping[str, Act], named: Mapping[str, Any]) -> Act:
    found = acts.get(str(named.get("act")))
    if found is None:
        raise InputRefused("there is no such act", value=named.get("act"))
    return found


def _words(given: object) -> str:
    """What a field may hold; the browser keeps to it by itself, whoever writes to it may not."""
    words = str(given)
    if len(words) > LONGEST_WORDS or not _PLAIN.fullmatch(words):
        raise InputRefused(f"a field takes at most {LONGEST_WORDS} letters of plain text")
    return words


def _dialog(asked: Mapping[str, Any], content: Sequence[Any]) -> Component:
    """Another key each time: a dialog that was closed is not opened again."""
    named: Any = {"data-act": asked["act"], "data-on": asked["on"]}
    return html.Dialog(
        list(content),
        key=str(asked.get("at")),
        className="act",
        **aria(labelledby="act-title"),
        **named,
    )


def _asking(question: Question) -> list[Any]:
    return [
        html.H2(question.title, id="act-title"),
        html.Div(list(question.says), className="act-says"),
        html.Div([_field(each) for each in question.fields], className="act-fields"),
        html.Div([_buttons(question)], id=_ANSWER, **aria(live="assertive")),
    ]


def _buttons(question: Question) -> Component:
    """With a key of their own: what was pressed once is new again after a refusal."""
    style = "action grave" if question.grave else "action main"
    yes = html.Button(question.yes, type="button", className=style, key=token_hex(4), **_DO)
    return html.Div([yes, _close("Leave it as it is")], className="actions")


def _field(field: Field) -> Component:
    name = f"act-{field.name}"
    return html.Div(
        [
            html.Label(field.title, htmlFor=name),
            dcc.Input(
                id=name,
                name=field.name,
                type="text",
                value=field.value,
                maxLength=LONGEST_WORDS,
                autoComplete="off",
                required=field.needed,
            ),
            html.Small(field.hint, className="quiet") if field.hint else None,
        ],
        className="field",
    )


def _close(words: str = "Close") -> Component:
    """Closes the dialog by itself, as Escape does."""
    return html.Form(
        html.Button(words, type="submit", className="action"),
        method="dialog",
        className="act-close",
    )
