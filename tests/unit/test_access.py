"""Tokens: made, shown, held against those that are valid, revoked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from autotune.bootstrap.access import PREFIX, Access, add_token, digest_of, revoke_token
from autotune.core.access import Role
from autotune.core.errors import InputRefused
from storage.service import ServiceStore
from tests.unit.test_cli import run

NOW = 1_000_000.0


class Clock:
    def __init__(self) -> None:
        self.at = NOW

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(database: Path, clock: Clock) -> Iterator[ServiceStore]:
    with closing(ServiceStore(str(database), now=clock)) as made:
        yield made


def made(store: ServiceStore, name: str = "ops", role: Role = Role.OPERATE) -> str:
    return add_token(store.tokens, store.promotions, name, role, by="cli:me")


def test_whoever_shows_a_token_is_known_by_its_name_and_role(store: ServiceStore) -> None:
    made(store, "looker", Role.VIEW)
    secret = made(store)
    found = Access(store.tokens, loopback=True).identify(secret)
    assert found is not None
    assert (found.name, found.role) == ("ops", Role.OPERATE)


def test_nobody_is_known_by_another_secret_or_by_a_digest(store: ServiceStore) -> None:
    secret = made(store)
    access = Access(store.tokens, loopback=True)
    others = ("", secret[:-1], secret + "x", digest_of(secret), "ä\x00")
    assert [access.identify(each) for each in others] == [None] * len(others)


def test_the_secret_is_stored_nowhere(store: ServiceStore, tmp_path: Path) -> None:
    secret = made(store)
    Access(store.tokens, loopback=True).identify(secret)
    assert secret.startswith(PREFIX)
    stored = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert secret.encode() not in stored
    assert digest_of(secret).encode() in stored


def test_a_revoked_token_is_nobodys(store: ServiceStore) -> None:
    secret = made(store)
    revoke_token(store.tokens, store.promotions, "ops", by="cli:me")
    assert Access(store.tokens, loopback=True).identify(secret) is None


def test_its_use_is_noted_at_most_once_a_minute(store: ServiceStore, clock: Clock) -> None:
    secret = made(store)
    access = Access(store.tokens, loopback=True, now=clock)
    seen = []
    for clock.at in (NOW, NOW + 59, NOW + 61):
        access.identify(secret)
        seen.append(store.tokens.tokens()[0].last_used_at)
    assert seen == [NOW, NOW, NOW + 61]


def test_no_token_is_needed_on_loopback_until_there_is_one(store: ServiceStore) -> None:
    access = Access(store.tokens, loopback=True)
    assert not access.required()
    made(store)
    assert access.required()
    revoke_token(store.tokens, store.promotions, "ops", by="cli:me")
    assert not access.required()
    assert Access(store.tokens, loopback=False).required()


def test_making_and_revoking_are_in_the_audit_trail(store: ServiceStore) -> None:
    made(store)
    revoke_token(store.tokens, store.promotions, "ops", by="cli:me")
    noted = [(entry.who, entry.action, entry.subject) for entry in store.promotions.audit()]
    assert noted == [("cli:me", "token revoke", "ops"), ("cli:me", "token add", "ops")]


@pytest.mark.parametrize("name", ["", " ", "a b", "[bold]", "x" * 101, "-x", "a\nb"])
def test_a_token_has_a_plain_name(store: ServiceStore, name: str) -> None:
    with pytest.raises(InputRefused, match="token's name"):
        made(store, name)


# ---------------------------------------------------------------------------------- command line
def test_the_command_prints_the_secret_once_and_lists_names_alone(tmp_path: Path) -> None:
    added = run("token", "add", "ops", "--role", "operate", "--db", "a.db", cwd=tmp_path)
    assert added.returncode == 0, added.stderr
    secret = added.stdout.strip()
    assert secret.startswith(PREFIX)
    assert secret not in added.stderr
    listed = run("token", "list", "--db", "a.db", cwd=tmp_path)
    assert "ops" in listed.stdout
    assert secret not in listed.stdout
    assert run("token", "revoke", "ops", "--db", "a.db", cwd=tmp_path).returncode == 0
    document = json.loads(run("token", "list", "--db", "a.db", "--json", cwd=tmp_path).stdout)
    assert [(each["name"], each["revoked_at"] is None) for each in document] == [("ops", False)]


def test_revoking_what_is_not_there_is_refused_with_near_names(tmp_path: Path) -> None:
    run("token", "add", "ops", "--db", "a.db", cwd=tmp_path)
    refused = run("token", "revoke", "opps", "--db", "a.db", cwd=tmp_path)
    assert refused.returncode == 2
    assert "ops" in refused.stderr
