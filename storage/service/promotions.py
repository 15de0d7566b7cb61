"""Promotions, and the trail of what was done."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from sqlalchemy import and_, or_, select
from sqlalchemy.orm import Session

from autotune.core.errors import Busy, Conflict, NotFound
from autotune.core.promotions import AuditEntry, Promotion, PromotionState, Step, Target
from storage.plain import text
from storage.service.database import Database, by_id
from storage.service.tables import AuditRow, PromotionRow
from storage.service.targets import target, target_json


class SqlPromotionStore:
    """What is in service at a target is the one promotion there that is done."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def propose(self, promotion: Promotion, *, step: Step | None = None) -> int:
        with self._database.write() as session:
            self._database.one_at_a_time(session)
            now = self._database.common_now(session)
            row = _new_row(promotion, now)
            session.add(row)
            session.flush()
            if step is not None:
                session.add(_step_row(row, step, now))
            _supersede(session, row, PromotionState.PROPOSED, now)
            if promotion.state is PromotionState.DONE:
                _supersede(session, row, PromotionState.DONE, now)
            return row.id

    def promotion(self, promotion_id: int) -> Promotion:
        with self._database.read() as session:
            return _promotion(_row(session, promotion_id))

    def promotions(
        self,
        *,
        model: str | None = None,
        states: Sequence[PromotionState] = (),
        limit: int = 100,
    ) -> Sequence[Promotion]:
        query = select(PromotionRow).order_by(PromotionRow.id.desc()).limit(limit)
        if model is not None:
            query = query.where(PromotionRow.model == text(model))
        if states:
            query = query.where(PromotionRow.state.in_([str(state) for state in states]))
        with self._database.read() as session:
            return [_promotion(row) for row in session.scalars(query)]

    def advance(  # noqa: PLR0913 - the port's
        self,
        promotion_id: int,
        *,
        expected: Sequence[PromotionState],
        state: PromotionState,
        by: str | None = None,
        reason: str | None = None,
        kept: str | None = None,
        detail: Mapping[str, Any] | None = None,
        step: Step | None = None,
    ) -> Promotion:
        with self._database.write() as session:
            self._database.one_at_a_time(session)
            now = self._database.common_now(session)
            row = advanced(session, promotion_id, expected, state, by=by, now=now)
            if reason is not None:
                row.reason = text(reason)
            if kept is not None:
                row.kept = text(kept)
            if detail is not None:
                row.detail = dict(detail)
            if state is PromotionState.DONE:
                row.applied_at = now
                session.flush()
                _supersede(session, row, PromotionState.DONE, now)
            if state is PromotionState.ROLLED_BACK:
                _reinstate(session, row, now)
            if step is not None:
                session.add(_step_row(row, step, now))
            return _promotion(row)

    def models(self) -> Sequence[str]:
        query = select(PromotionRow.model).distinct().order_by(PromotionRow.model)
        with self._database.read() as session:
            return list(session.scalars(query))

    @contextmanager
    def alone(self, target: Target) -> Iterator[None]:
        places = [target.repository, target.grpc]
        with ExitStack() as stack:
            for place in (str(each) for each in places if each is not None):
                if not stack.enter_context(self._database.held(f"promotion to {place}")):
                    raise Busy(
                        f"another promotion is under way at {place}",
                        next_step="wait until it has ended; `autotune history MODEL` tells of it",
                    )
            yield

    def champion(self, model: str, target: Target | None = None) -> Promotion | None:
        query = (
            select(PromotionRow)
            .where(
                PromotionRow.model == text(model), PromotionRow.state == str(PromotionState.DONE)
            )
            .order_by(PromotionRow.applied_at.desc(), PromotionRow.id.desc())
            .limit(1)
        )
        if target is not None:
            query = query.where(PromotionRow.place == _place(target))
        with self._database.read() as session:
            row = session.scalar(query)
            return None if row is None else _promotion(row)

    def note(  # noqa: PLR0913 - the port's
        self,
        who: str,
        action: str,
        subject: str,
        *,
        why: str = "",
        diff: str = "",
        detail: Mapping[str, Any] | None = None,
    ) -> None:
        now = self._database.now()
        row = audit_row(now, who, action, subject, why=why, diff=diff, detail=detail)
        with self._database.write() as session:
            session.add(row)

    def audit(
        self, *, subject: str | None = None, subjects: Collection[str] = (), limit: int = 200
    ) -> Sequence[AuditEntry]:
        query = select(AuditRow).order_by(AuditRow.id.desc()).limit(limit)
        named = {*subjects} if subject is None else {*subjects, subject}
        if named:
            query = query.where(AuditRow.subject.in_(sorted(map(text, named))))
        with self._database.read() as session:
            return [_entry(row) for row in session.scalars(query)]


def advanced(  # noqa: PLR0913 - a step, and whose
    session: Session,
    promotion_id: int,
    expected: Sequence[PromotionState],
    state: PromotionState,
    *,
    by: str | None,
    now: float,
) -> PromotionRow:
    """In its new state, as a part of the caller's transaction."""
    row = _row(session, promotion_id, lock=True)
    _refuse_unexpected(row, expected, state)
    row.state = str(state)
    if by is not None:
        row.decided_by, row.decided_at = text(by), now
    return row


def audit_row(  # noqa: PLR0913 - who did what to what, and why
    now: float,
    who: str,
    action: str,
    subject: str,
    *,
    why: str = "",
    diff: str = "",
    detail: Mapping[str, Any] | None = None,
) -> AuditRow:
    return AuditRow(
        at=now,
        who=text(who),
        action=text(action),
        subject=text(subject),
        why=text(why),
        diff=text(diff),
        detail=dict(detail or {}),
    )


def _supersede(session: Session, row: PromotionRow, state: PromotionState, now: float) -> None:
    """The others of its model and target that are in that state; what was said of them stays."""
    others = select(PromotionRow).where(
        PromotionRow.model == row.model,
        PromotionRow.place == row.place,
        PromotionRow.state == str(state),
        PromotionRow.id != row.id,
    )
    words = f"superseded by promotion {row.id}"
    step = Step(who=row.decided_by or row.created_by, action="superseded", why=words)
    for other in session.scalars(others.with_for_update()).all():
        other.state = str(PromotionState.SUPERSEDED)
        other.reason = f"{other.reason}; {words}" if other.reason else words
        session.add(_step_row(other, step, now))


def _reinstate(session: Session, row: PromotionRow, now: float) -> None:
    """What it had superseded: the latest before it that was in service there."""
    earlier = or_(
        PromotionRow.applied_at < row.applied_at,
        and_(PromotionRow.applied_at == row.applied_at, PromotionRow.id < row.id),
    )
    there = (
        select(PromotionRow)
        .where(
            PromotionRow.model == row.model,
            PromotionRow.place == row.place,
            PromotionRow.state == str(PromotionState.SUPERSEDED),
            earlier,
        )
        .order_by(PromotionRow.applied_at.desc(), PromotionRow.id.desc())
        .limit(1)
        .with_for_update()
    )
    before = session.scalars(there).first()
    if before is None:
        return
    words = f"in service again: promotion {row.id} was rolled back"
    before.state, before.reason, before.applied_at = str(PromotionState.DONE), words, now
    step = Step(who=row.decided_by or row.created_by, action="in service again", why=words)
    session.add(_step_row(before, step, now))


def _step_row(row: PromotionRow, step: Step, now: float) -> AuditRow:
    about = {"model": row.model, "target": row.place}
    subject = f"promotion {row.id}"
    return audit_row(
        now, step.who, step.action, subject, why=step.why, diff=step.diff, detail=about
    )


def _refuse_unexpected(
    row: PromotionRow, expected: Sequence[PromotionState], state: PromotionState
) -> None:
    if row.state not in expected:
        decided = f" by {row.decided_by}" if row.decided_by else ""
        now = f"{row.state}{decided}".replace("_", " ", 1)
        is_so = row.state == state
        raise Conflict(
            f"promotion {row.id} is "
            + (f"already {now}" if is_so else f"{now}: it cannot become {state}"),
            next_step=f"That takes one that is {' or '.join(expected)}.",
        )


def _place(target: Target) -> str:
    return text(str(target))


def _row(session: Session, promotion_id: int, *, lock: bool = False) -> PromotionRow:
    row = by_id(session, PromotionRow, promotion_id, lock=lock)
    if row is None:
        raise NotFound("no such promotion", value=promotion_id)
    return row


def _new_row(promotion: Promotion, now: float) -> PromotionRow:
    return PromotionRow(
        model=text(promotion.model),
        target=target_json(promotion.target),
        place=_place(promotion.target),
        study_id=promotion.study_id,
        trial=promotion.trial,
        candidate=dict(promotion.candidate),
        state=str(promotion.state),
        why=text(promotion.why),
        diff=text(promotion.diff),
        kept=text(promotion.kept),
        schedule_id=promotion.schedule_id,
        created_at=now,
        created_by=text(promotion.created_by),
        decided_at=promotion.decided_at,
        decided_by=text(promotion.decided_by),
        applied_at=now if promotion.state is PromotionState.DONE else None,
        reason=text(promotion.reason),
        detail=dict(promotion.detail),
    )


def _promotion(row: PromotionRow) -> Promotion:
    where = target(row.target)
    assert where is not None, f"promotion {row.id} has no target"
    return Promotion(
        id=row.id,
        model=row.model,
        target=where,
        study_id=row.study_id,
        trial=row.trial,
        candidate=row.candidate,
        state=PromotionState(row.state),
        why=row.why,
        diff=row.diff,
        kept=row.kept,
        schedule_id=row.schedule_id,
        created_at=row.created_at,
        created_by=row.created_by,
        decided_at=row.decided_at,
        decided_by=row.decided_by,
        applied_at=row.applied_at,
        reason=row.reason,
        detail=row.detail,
    )


def _entry(row: AuditRow) -> AuditEntry:
    return AuditEntry(
        id=row.id,
        at=row.at,
        who=row.who,
        action=row.action,
        subject=row.subject,
        why=row.why,
        diff=row.diff,
        detail=row.detail,
    )
