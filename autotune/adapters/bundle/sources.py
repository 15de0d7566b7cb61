"""Where a distribution's files come from: installed here, where that is what the target needs, or a
wheel."""

from __future__ import annotations

import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Protocol, TypeAlias

from packaging.tags import Tag, parse_tag
from packaging.utils import parse_wheel_filename
from packaging.version import Version

from autotune.adapters.bundle.pins import Pin
from autotune.adapters.bundle.target import Target
from autotune.adapters.hashes import sha256_of
from autotune.adapters.triton.environment import PIP, run
from autotune.core.errors import AutotuneError, ServerFailed

Writer: TypeAlias = Callable[[Path], object]
"""Writes a file's content to a path."""


class Source(Protocol):
    """A distribution, as what it puts below site-packages."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...

    def files(self) -> Iterator[tuple[str, Writer]]:
        """Each file's path there, and what writes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    name: str
    version: str
    distribution: metadata.Distribution

    def files(self) -> Iterator[tuple[str, Writer]]:
        for file in self.distribution.files or ():
            path = Path(str(file.locate()))
            if ".." not in file.parts and not file.is_absolute() and path.is_file():
                yield file.as_posix(), partial(shutil.copyfile, path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel:
    name: str
    version: str
    path: Path

    def files(self) -> Iterator[tuple[str, Writer]]:
        with zipfile.ZipFile(self.path) as archive:
            for member in archive.infolist():
                path = _installed_path(member.filename)
                if path and not member.is_dir():
                    yield path, partial(_extract, archive, member)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetching:
    """Wheels are fetched into ``store``, once, by the Python that ``pip`` gives."""

    store: Path
    pip: Callable[[], Path]
    say: Callable[[str], None]


def gather(
    pins: Iterable[Pin], target: Target, installed_in: Sequence[Path], fetching: Fetching
) -> Sequence[Source]:
    """A source for each pin, in their order: what is installed in one of those folders of
    site-packages, else a wheel. AutotuneError where wheels cannot be fetched."""
    pins = list(pins)
    tags = target.tags()
    found: dict[str, Source] = {}
    for pin in pins:
        here: Source | None = _installed(pin, installed_in, tags)
        here = here or _stored(pin, fetching.store, tags)
        if here is not None:
            found[pin.name] = here
    missing = [pin for pin in pins if pin.name not in found]
    if missing:
        names = ", ".join(pin.name for pin in missing)
        fetching.say(f"fetching {len(missing)} wheels for Python {target.version}: {names}")
        _fetch(missing, target, fetching.store, fetching.pip())
        found |= _all_stored(missing, fetching.store, tags)
    return [found[pin.name] for pin in pins]


def _installed(pin: Pin, folders: Sequence[Path], tags: frozenset[Tag]) -> Installed | None:
    """As a wheel that the target could have installed put it there: what was built on this machine
    may stand on libraries of this machine."""
    for one in metadata.distributions(name=pin.name, path=[str(each) for each in folders]):
        if Version(one.version) == Version(pin.version) and one.files and _wheel_tags(one) & tags:
            return Installed(name=pin.name, version=pin.version, distribution=one)
    return None


def _wheel_tags(distribution: metadata.Distribution) -> frozenset[Tag]:
    lines = (distribution.read_text("WHEEL") or "").splitlines()
    stated = [line.partition(":")[2].strip() for line in lines if line.startswith("Tag:")]
    return frozenset(tag for each in stated for tag in parse_tag(each))


def _stored(pin: Pin, store: Path, tags: frozenset[Tag]) -> Wheel | None:
    """A wheel that was fetched before, known by its hash."""
    for path in sorted(store.glob("*.whl")):
        name, version, _, fits = parse_wheel_filename(path.name)
        this = name == pin.name and version == Version(pin.version) and bool(fits & tags)
        if this and pin.is_of(sha256_of(path)):
            return Wheel(name=pin.name, version=pin.version, path=path)
    return None


def _all_stored(pins: Iterable[Pin], store: Path, tags: frozenset[Tag]) -> dict[str, Source]:
    found = {pin.name: _stored(pin, store, tags) for pin in pins}
    lacking = [name for name, wheel in found.items() if wheel is None]
    if lacking:
        raise AutotuneError("pip fetched other files than wheels of these", value=lacking)
    return {name: wheel for name, wheel in found.items() if wheel is not None}


def _fetch(pins: Sequence[Pin], target: Target, store: Path, python: Path) -> None:
    store.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=store) as folder:
        wanted = Path(folder) / "wanted.txt"
        wanted.write_text("".join(f"{pin.requirement()}\n" for pin in pins), "utf-8")
        command = [str(python), "-m", "pip", "download", "--quiet", *PIP, "--no-deps"]
        command += ["--require-hashes", *target.pip_options(), "--dest", folder, "-r", str(wanted)]
        try:
            run(command, "")
        except ServerFailed as error:
            raise AutotuneError(
                f"the wheels for Python {target.version} could not be fetched",
                value=str(error.value),
                next_step="a bundle is built where pip reaches a package index; for the Python"
                " that autotune runs on here, what is installed is packed without one",
            ) from error
        for wheel in Path(folder).glob("*.whl"):
            wheel.replace(store / wheel.name)


def _extract(archive: zipfile.ZipFile, member: zipfile.ZipInfo, to: Path) -> None:
    with archive.open(member) as content, to.open("wb") as file:
        shutil.copyfileobj(content, file)


def _installed_path(member: str) -> str:
    """Where a wheel's member goes below site-packages; empty for what goes elsewhere."""
    first, _, rest = member.partition("/")
    if not first.endswith(".data"):
        return member
    kind, _, path = rest.partition("/")
    return path if kind in ("purelib", "platlib") else ""
