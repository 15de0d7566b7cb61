"""A study's runner on fakes, what the command line prints, and the fake NVML, built once."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
import rich.console

from autotune.cli.console import Console
from search_spaces.candidate import Candidate
from storage.service import ServiceStore
from tests.fake_nvml import OLD, FakeNvml, build, compiler, loaded
from tests.runner_bench import FOUR, ONE, TWO, Bench, study


@pytest.fixture
def bench(database: Path) -> Iterator[Callable[..., Bench]]:
    """Makes runners on the test's own database, of `study` with changes."""
    with ExitStack() as stack:

        def make(candidates: list[Candidate] | None = None, **changes: Any) -> Bench:
            made = Bench(database.parent, study(**changes), candidates or [ONE, TWO, FOUR])
            stack.callback(made.store.close)
            return made

        yield make


@pytest.fixture
def store(
    database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ServiceStore]:
    """A service's, with folders of the test's own."""
    monkeypatch.setenv("AUTOTUNE_WORK", str(tmp_path / "work"))
    monkeypatch.setenv("AUTOTUNE_SERVICE", str(tmp_path / "service"))
    with closing(ServiceStore(str(database))) as made:
        yield made


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], io.StringIO]:
    """Standard output and error of a given width, to be read."""

    def of(width: int) -> io.StringIO:
        text = io.StringIO()
        console = rich.console.Console(file=text, width=width, highlight=False)
        monkeypatch.setattr(Console, "out", console)
        monkeypatch.setattr(Console, "err", console)
        return text

    return of


@pytest.fixture(scope="session")
def nvml_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The library of a version of the driver: of a new one, unless told."""
    if compiler() is None:
        pytest.skip("no C compiler (cc) here to build the fake NVML with")
    folder = tmp_path_factory.mktemp("nvml")
    return lambda *driver: build(folder, *driver)


@pytest.fixture
def nvml(nvml_of: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeNvml]:
    """One Hopper, whatever is said of it in the test; CUDA shows all there is."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with loaded(nvml_of()) as fake:
        yield fake


@pytest.fixture
def old_nvml(nvml_of: Callable[..., Path]) -> Iterator[FakeNvml]:
    """A driver from before GPM, with functions of older names."""
    with loaded(nvml_of(OLD)) as fake:
        yield fake
