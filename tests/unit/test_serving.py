"""What the service refuses before it begins, and what it keeps for itself."""

from __future__ import annotations

import logging
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import structlog

from autotune.bootstrap import serving
from autotune.bootstrap.access import add_token
from autotune.bootstrap.serving import SESSION_KEY, Asked, serve
from autotune.core.access import Role
from autotune.core.errors import AutotuneError, InputRefused
from autotune.settings import Settings
from storage.service import ServiceStore
from tests.unit.test_cli import run


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    yield
    root.handlers, root.level = before, level
    structlog.reset_defaults()


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Asked:
    monkeypatch.setenv("AUTOTUNE_WORK", str(tmp_path / "work"))
    monkeypatch.setenv("AUTOTUNE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("AUTOTUNE_SERVICE", raising=False)
    monkeypatch.delenv("AUTOTUNE_SECRET_KEY", raising=False)
    return Asked(db=str(tmp_path / "service.db"), root=tmp_path, port=0)


@pytest.fixture
def taken() -> Iterator[int]:
    """A port of the loopback interface that somebody has."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield int(server.getsockname()[1])


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_others_are_let_in_only_with_tokens(asked: Asked, host: str) -> None:
    with pytest.raises(InputRefused, match="autotune token add NAME --role operate"):
        serve(replace(asked, host=host))


def test_a_token_that_was_revoked_lets_nobody_in(asked: Asked) -> None:
    with closing(ServiceStore(asked.db)) as store:
        add_token(store.tokens, store.promotions, "ops", Role.VIEW, by="me")
        store.tokens.revoke("ops")
    with pytest.raises(InputRefused, match="token add"):
        serve(replace(asked, host="0.0.0.0"))


def test_with_a_token_others_are_let_in(asked: Asked, taken: int) -> None:
    with closing(ServiceStore(asked.db)) as store:
        add_token(store.tokens, store.promotions, "ops", Role.VIEW, by="me")
    with pytest.raises(AutotuneError, match="taken by another program"):
        serve(replace(asked, host="0.0.0.0", port=taken))


def test_behind_a_proxy_a_token_is_needed_on_loopback_too(asked: Asked) -> None:
    with pytest.raises(InputRefused, match="token add"):
        serve(replace(asked, proxies=("127.0.0.1",)))


def test_a_port_that_somebody_has_is_told_with_exit_code_1(
    asked: Asked, taken: int, tmp_path: Path
) -> None:
    refused = run("serve", "--port", str(taken), "--db", asked.db, cwd=tmp_path)
    assert refused.returncode == 1
    assert f"port {taken} of 127.0.0.1 is taken by another program" in refused.stderr
    assert "--port" in refused.stderr


def test_of_two_that_begin_at_once_one_has_the_port(asked: Asked) -> None:
    address = (socket.AF_INET, ("127.0.0.1", 0))
    with serving._bound(asked, address) as first:
        port = first.getsockname()[1]
        with pytest.raises(AutotuneError, match="taken by another program"):
            serving._bound(replace(asked, port=port), (socket.AF_INET, ("127.0.0.1", port)))


HANGS = """
import threading
from autotune.bootstrap import serving
serving._END_S = 0.1
serving._end_in_time()
threading.Thread(target=threading.Event().wait).start()
"""


def test_a_thread_that_waits_for_ever_does_not_keep_the_service_from_ending() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", HANGS], capture_output=True, text=True, check=False, timeout=60
    )
    assert ended.returncode == 1
    assert "ended by force" in ended.stdout + ended.stderr


def test_an_address_that_this_machine_does_not_have_is_refused(asked: Asked) -> None:
    with pytest.raises(InputRefused, match="no such address"):
        serve(replace(asked, host="no-such-host.invalid"))


def test_without_the_extra_it_is_told_how_to_install_it(
    asked: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "autotune.bootstrap.serving")
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    refused = run("serve", "--port", "0", "--db", asked.db, cwd=tmp_path)
    assert refused.returncode == 2
    assert "triton-autotune[serve]" in refused.stderr


IMPORTS_ALL = """
import importlib, sys
from autotune.cli import cli
for name in (*cli.commands_in, *cli.unlisted):
    importlib.import_module(f"autotune.cli.{name}")
import autotune.bootstrap.nights, autotune.bootstrap.job_run
print([name for name in sys.argv[1:] if name in sys.modules])
"""


def test_no_command_but_serve_needs_the_extra() -> None:
    extra = ("dash", "fastapi", "itsdangerous", "limits", "prometheus_client", "uvicorn")
    imported = subprocess.run(
        [sys.executable, "-c", IMPORTS_ALL, *extra], capture_output=True, text=True, check=True
    )
    assert imported.stdout.strip() == "[]"


# ------------------------------------------------------------------------------------------ key
def test_the_key_of_sessions_is_made_once_and_is_its_owners_alone(asked: Asked) -> None:
    settings = Settings.from_environment()
    settings.service_dir.mkdir(parents=True)
    key = serving._session_key(settings)
    assert len(key) == 64
    assert serving._session_key(settings) == key
    mode = (settings.service_dir / SESSION_KEY).stat().st_mode
    assert stat.S_IMODE(mode) == 0o600
    assert [path.name for path in settings.service_dir.iterdir()] == [SESSION_KEY]


def test_a_key_from_the_environment_is_stored_nowhere(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOTUNE_SECRET_KEY", "a key of one's own")
    settings = Settings.from_environment()
    settings.service_dir.mkdir(parents=True)
    assert serving._session_key(settings) == "a key of one's own"
    assert list(settings.service_dir.iterdir()) == []
