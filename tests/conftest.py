"""For all tests."""

import faulthandler
import os
import shutil
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from storage.service import ServiceStore
from tests import postgres

# Half of Hypothesis' own number of examples, and no deadline for each: the whole suite has to run
# in minutes, on two cores that may be busy.
settings.register_profile("suite", max_examples=50, deadline=None)
settings.load_profile("suite")

FAILURE_LINES = 12
TEARDOWN_S = 200
LONGEST = (
    *("tests/integration/test_study", "tests/integration/test_compare"),
    *("tests/integration/test_gpu_check", "tests/browser/test_service.py"),
)


class ByFile(LoadScopeScheduling):
    """Where tests run side by side, each file stays with one process.

    (pytest-xdist 3.8's own ``--dist loadgroup`` does nothing under pytest 9.2, whose node ids
    cannot be changed any more.)
    """

    def _split_scope(self, nodeid: str) -> str:
        return nodeid.split("::", 1)[0]


def pytest_configure(config: pytest.Config) -> None:
    """One study at a time may measure on a machine: each of the processes that run tests has a
    slot of it to itself. (What these studies measure is not looked at that closely.)"""
    config.pluginmanager.register(FailuresAsTheyCome(config))
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is not None:
        os.environ["AUTOTUNE_SLOT"] = f"tests-{worker}"


class FailuresAsTheyCome:
    """Tells of a failure at once: a run that is broken off has told what it knew."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.failed:
            return
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if terminal is None:  # a process of pytest-xdist's: the one that it works for tells
            return
        terminal.line("")
        told = report.longreprtext.splitlines()
        terminal.write_line(f"failed ({report.when}): {report.nodeid}", red=True)
        for line in [line for line in told if line.startswith("E ")][:FAILURE_LINES]:
            terminal.write_line(line)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None, None, None]:
    """A teardown that hangs ends its process, and pytest-xdist begins another: pytest-timeout stops
    its clock as soon as a test has failed."""
    faulthandler.dump_traceback_later(TEARDOWN_S, exit=True)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An SQLite database whose tables are empty, to be copied: to build them takes longer than
    most tests."""
    path = tmp_path_factory.mktemp("empty") / "empty.db"
    ServiceStore(str(path)).close()
    return path


@pytest.fixture
def database(migrated: Path, tmp_path: Path) -> Path:
    """An SQLite database of the test's own, whose tables are empty."""
    return Path(shutil.copy(migrated, tmp_path / "autotune.db"))


@pytest.fixture(scope="session")
def postgresql() -> Iterator[str]:
    """The URL of a database, without tables, of a PostgreSQL server of the tests' own."""
    if postgres.binaries() is None:
        pytest.skip("PostgreSQL is not installed")
    with postgres.server() as url:
        yield url


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    return ByFile(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest comes first: nobody is to wait for it at the end."""
    items.sort(key=lambda item: not item.nodeid.startswith(LONGEST))
