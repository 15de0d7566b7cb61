"""Have a study's question asked again and again."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dash import dcc, html

from autotune.core.errors import InputRefused
from autotune.core.promotions import Target
from autotune.core.schedules import Policy, Schedule
from autotune.service_ports import Desks
from dashboards.web.pages.proposing import GRPC, HTTP, REPOSITORY
from dashboards.web.pages.schedules import POLICIES, href
from dashboards.web.parts.acts import Act, Field, Question

NAME = Field(name="name", title="Name", needed=True)
CRON = Field(
    name="cron",
    title="Due",
    value="0 3 * * *",
    hint="minute, hour, day of the month, month, day of the week; this is every night at three",
    needed=True,
)
ZONE = Field(
    name="timezone", title="Time zone", value="UTC", hint="e.g. Europe/Berlin", needed=True
)
POLICY = Field(
    name="policy",
    title="Policy",
    value=str(Policy.REPORT),
    hint="; ".join(f"{policy}: {words}" for policy, words in POLICIES.items())
    + ". The last two need a target:",
    needed=True,
)


def _ask(desks: Desks, on: str) -> Question:
    study = desks.studies.outline(_id(on)).study
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", study.name).strip("-._")[:90]
    name = Field(name=NAME.name, title=NAME.title, value=f"{plain or 'study'}-nightly", needed=True)
    return Question(
        title=f"Schedule {study.name}",
        says=[
            html.P(
                "Each run measures what is in service first, and searches only where it does not"
                " still win."
            )
        ],
        fields=(name, CRON, ZONE, POLICY, REPOSITORY, GRPC, HTTP),
        yes="Schedule it",
    )


def _do(desks: Desks, on: str, given: Mapping[str, str], by: str) -> Any:
    """What the study names is held against what a request may name, as if it came with it."""
    definition = desks.studies.outline(_id(on)).record.definition
    words = {name: text.strip() for name, text in given.items()}
    made = desks.schedules.add(
        Schedule(
            id=0,
            name=words.get("name", ""),
            definition=dict(desks.checks.study(definition)),
            cron=words.get("cron", ""),
            timezone=words.get("timezone", ""),
            policy=_policy(words.get("policy", "")),
            target=_target(desks, words),
        ),
        by=by,
    )
    name = made.schedule.name
    return [dcc.Link(name, href=href(name)), " is scheduled."]


def _id(text: str) -> str:
    if not (text.isascii() and text.isdecimal()):
        raise InputRefused("a study is scheduled by its number", value=text)
    return text


def _policy(text: str) -> Policy:
    try:
        return Policy(text)
    except ValueError as exc:
        raise InputRefused(
            f"a policy is {', '.join(Policy)}", value=text, next_step="report changes nothing"
        ) from exc


def _target(desks: Desks, words: Mapping[str, str]) -> Target | None:
    repository, grpc, http = (words.get(f.name) or None for f in (REPOSITORY, GRPC, HTTP))
    if repository is None and grpc is None and http is None:
        return None
    where = None if repository is None else Path(repository)
    return desks.checks.target(Target(repository=where, grpc=grpc, http=http))


ACTS = {"schedule": Act(ask=_ask, do=_do)}
