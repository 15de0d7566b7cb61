"""What every TokenStore does."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from autotune.core.access import Role, Token
from autotune.core.errors import InputRefused
from autotune.service_ports import TokenStore
from storage.service import ServiceStore
from tests.contract.conftest import Clock

DIGEST = "ab" * 32


@pytest.fixture
def tokens(service: ServiceStore) -> TokenStore:
    return service.tokens


@pytest.fixture
def others(again: ServiceStore) -> TokenStore:
    return again.tokens


def test_a_token_comes_back_as_it_was_added(tokens: TokenStore, others: TokenStore) -> None:
    token_id = tokens.add("ci", Role.OPERATE, DIGEST)
    expected = Token(id=token_id, name="ci", role=Role.OPERATE, digest=DIGEST, created_at=1000.0)
    assert list(others.tokens()) == list(others.valid()) == [expected]


def test_a_name_is_valid_once(tokens: TokenStore, others: TokenStore) -> None:
    tokens.add("ci", Role.VIEW, DIGEST)
    with pytest.raises(InputRefused, match="a valid token of that name"):
        others.add("ci", Role.OPERATE, "cd" * 32)
    assert [token.role for token in tokens.tokens()] == [Role.VIEW]


def test_of_many_who_add_one_name_at_once_one_does(tokens: TokenStore, others: TokenStore) -> None:
    def add(store: TokenStore) -> bool:
        try:
            store.add("ci", Role.VIEW, DIGEST)
        except InputRefused:
            return False
        return True

    with ThreadPoolExecutor(6) as pool:
        asked = [pool.submit(add, store) for store in (tokens, others) * 3]
        assert sum(each.result(timeout=60) for each in asked) == 1


def test_a_revoked_token_is_kept_and_not_valid_and_its_name_free_again(
    tokens: TokenStore, clock: Clock
) -> None:
    first = tokens.add("ci", Role.VIEW, DIGEST)
    clock.at = 1001.0
    tokens.revoke("ci")
    assert list(tokens.valid()) == []
    assert [(token.id, token.revoked_at) for token in tokens.tokens()] == [(first, 1001.0)]
    second = tokens.add("ci", Role.VIEW, "cd" * 32)
    tokens.revoke("ci")
    assert [token.id for token in tokens.tokens()] == [first, second]


def test_only_a_valid_token_can_be_revoked_and_near_names_are_suggested(
    tokens: TokenStore,
) -> None:
    tokens.add("laptop", Role.VIEW, DIGEST)
    tokens.add("ci", Role.VIEW, DIGEST)
    tokens.revoke("ci")
    with pytest.raises(InputRefused, match="no such valid token"):
        tokens.revoke("ci")
    with pytest.raises(InputRefused) as refused:
        tokens.revoke("labtop")
    assert refused.value.next_step == "Did you mean laptop?"


def test_a_token_knows_when_it_was_used_last(tokens: TokenStore, clock: Clock) -> None:
    token_id = tokens.add("ci", Role.VIEW, DIGEST)
    clock.at = 1500.0
    tokens.used(token_id)
    assert [token.last_used_at for token in tokens.tokens()] == [1500.0]
