"""Propose a trial to be put into service."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dash import dcc, html

from autotune.core.errors import InputRefused
from autotune.core.promotions import Target
from autotune.service_ports import Desks
from dashboards.web.parts.acts import WHY, Act, Field, Question

REPOSITORY = Field(
    name="repository",
    title="Model repository",
    hint="a directory of Triton’s, below the service’s root",
)
HTTP = Field(name="http", title="Its HTTP address", hint="host:port, to check its SLA there")
GRPC = Field(name="grpc", title="Live Triton, gRPC", hint="host:port; empty: the directory alone")


def _ask(_desks: Desks, on: str) -> Question:
    study, number = _of(on)
    return Question(
        title=f"Propose trial {number} of study {study}",
        says=[
            html.P(
                "It is exported, and its configuration is held against what is there. Nothing is"
                " changed before someone approves it."
            )
        ],
        fields=(REPOSITORY, GRPC, HTTP, WHY),
        yes="Propose it",
    )


def _do(desks: Desks, on: str, given: Mapping[str, str], by: str) -> Any:
    study, number = _of(on)
    repository, grpc, http = (given.get(n, "").strip() for n in ("repository", "grpc", "http"))
    target = Target(
        repository=Path(repository) if repository else None, grpc=grpc or None, http=http or None
    )
    made = desks.promotions.propose(
        study,
        trial=int(number),
        target=desks.checks.target(target),
        why=given.get("why", ""),
        by=by,
    )
    where = dcc.Link(f"promotion {made.id}", href=f"/promotions/{made.id}")
    return [where, " waits for approval."]


def _of(on: str) -> tuple[str, str]:
    study, _, number = on.partition("/")
    if not (study.isascii() and study.isdecimal() and number.isascii() and number.isdecimal()):
        raise InputRefused("a trial is named by its study and its number", value=on)
    return study, number


ACTS = {"propose": Act(ask=_ask, do=_do)}
