"""The fake NVML, built once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fake_nvml import OLD, FakeNvml, build, compiler, loaded


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
