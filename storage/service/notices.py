"""Notices that wait to be sent, and those that were."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import select

from autotune.core.errors import NotFound
from autotune.core.notices import Event, Notice, NoticeState
from storage.plain import text as clean
from storage.service.database import Database, by_id
from storage.service.tables import NoticeRow


class SqlNoticeStore:
    def __init__(self, database: Database) -> None:
        self._database = database

    def add(  # noqa: PLR0913 - the port's
        self,
        event: Event,
        title: str,
        text: str,
        payload: Mapping[str, Any],
        channel: str,
        *,
        unsent: str = "",
    ) -> int:
        row = NoticeRow(
            event=str(event),
            title=clean(title),
            text=clean(text),
            channel=clean(channel),
            created_at=self._database.now(),
            payload=dict(payload),
            state=str(NoticeState.FAILED if unsent else NoticeState.WAITING),
            attempts=0,
            error=clean(unsent),
        )
        with self._database.write() as session:
            session.add(row)
            session.flush()
            return row.id

    def waiting(self) -> Sequence[Notice]:
        query = select(NoticeRow).where(NoticeRow.state == str(NoticeState.WAITING))
        with self._database.read() as session:
            return [_notice(row) for row in session.scalars(query.order_by(NoticeRow.id))]

    def tried(self, notice_id: int, *, error: str | None, give_up: bool = False) -> None:
        now = self._database.now()
        with self._database.write() as session:
            row = by_id(session, NoticeRow, notice_id, lock=True)
            if row is None:
                raise NotFound("no such notice", value=notice_id)
            row.attempts += 1
            row.error = "" if error is None else clean(error)
            if error is None:
                row.state, row.sent_at = str(NoticeState.SENT), now
            elif give_up:
                row.state = str(NoticeState.FAILED)

    def notices(self, *, limit: int = 100) -> Sequence[Notice]:
        query = select(NoticeRow).order_by(NoticeRow.id.desc()).limit(limit)
        with self._database.read() as session:
            return [_notice(row) for row in session.scalars(query)]


def _notice(row: NoticeRow) -> Notice:
    return Notice(
        id=row.id,
        event=Event(row.event),
        title=row.title,
        text=row.text,
        channel=row.channel,
        created_at=row.created_at,
        payload=row.payload,
        state=NoticeState(row.state),
        attempts=row.attempts,
        sent_at=row.sent_at,
        error=row.error,
    )
