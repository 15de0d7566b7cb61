"""Who has a token, by its digest."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select, update

from autotune.core.access import Role, Token
from autotune.core.errors import Conflict
from storage.plain import text
from storage.service.database import Database, added, no_such
from storage.service.tables import TokenRow


class SqlTokenStore:
    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, name: str, role: Role, digest: str) -> int:
        row = TokenRow(
            name=text(name), role=str(role), digest=digest, created_at=self._database.now()
        )
        with self._database.write() as session:
            if not added(session, row):
                raise Conflict(
                    "there is a valid token of that name",
                    value=name,
                    next_step="Take another name, or revoke that one first.",
                )
            return row.id

    def tokens(self) -> Sequence[Token]:
        with self._database.read() as session:
            return [_token(row) for row in session.scalars(select(TokenRow).order_by(TokenRow.id))]

    def valid(self) -> Sequence[Token]:
        query = select(TokenRow).where(TokenRow.revoked_at.is_(None)).order_by(TokenRow.id)
        with self._database.read() as session:
            return [_token(row) for row in session.scalars(query)]

    def used(self, token_id: int) -> None:
        now = self._database.now()
        with self._database.write() as session:
            session.execute(
                update(TokenRow).where(TokenRow.id == token_id).values(last_used_at=now)
            )

    def revoke(self, name: str) -> None:
        valid = select(TokenRow).where(TokenRow.revoked_at.is_(None))
        now = self._database.now()
        with self._database.write() as session:
            row = session.scalar(valid.where(TokenRow.name == text(name)).with_for_update())
            if row is None:
                raise no_such("valid token", name, [one.name for one in session.scalars(valid)])
            row.revoked_at = now


def _token(row: TokenRow) -> Token:
    return Token(
        id=row.id,
        name=row.name,
        role=Role(row.role),
        digest=row.digest,
        created_at=row.created_at,
        last_used_at=row.last_used_at,
        revoked_at=row.revoked_at,
    )
