"""A study made to run on another machine: with the files that it names, in one archive."""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from autotune.adapters.triton.onnx_graph import external_files
from autotune.core.errors import InputRefused
from autotune.core.study import AccuracySpec, CalibrationSpec, Study
from autotune.core.workload import InputSpec

BESIDE_BYTES = 64 * 2**20
"""The most that may stand beside a Python file, which may read any of it."""
_FUNCTION = re.compile(r"(?P<path>.+\.py):(?P<function>[A-Za-z_]\w*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shipment:
    """``names``: where in the ``archive`` each of the study's paths is."""

    study: Study
    names: dict[Path, str]
    archive: bytes

    def unpacked(self, folder: Path) -> Study:
        """The study, its paths those below ``folder``. A server's own binary is the machine's."""
        with tarfile.open(fileobj=io.BytesIO(self.archive)) as archive:
            archive.extractall(folder, filter="data")
        return moved(self.study, lambda path: folder / self.names[path])


def shipped(study: Study, kept: Sequence[Path] = ()) -> Shipment:
    """InputRefused for a file that is not there, or has too much beside it. ``kept``: files and
    folders that are not shipped, though they may stand beside a Python file."""
    paths: list[Path] = []

    def note(path: Path) -> Path:
        paths.append(path)
        return path

    moved(study, note)
    names: dict[Path, str] = {}
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w", dereference=True) as archive:
        for index, path in enumerate(dict.fromkeys(paths)):
            base = path if path.is_dir() else path.parent
            names[path] = str(index) if path.is_dir() else f"{index}/{path.name}"
            for file in _with_its_own(path, kept):
                inside = file.relative_to(base)
                try:
                    archive.add(file, f"{index}/{inside}" if str(inside) != "." else str(index))
                except OSError as exc:
                    raise InputRefused(
                        f"a file of the study cannot be read: {exc.strerror}", value=str(file)
                    ) from exc
    return Shipment(study=study, names=names, archive=sink.getvalue())


def _with_its_own(path: Path, kept: Sequence[Path]) -> Iterator[Path]:
    """A folder; a file, with the weights that an ONNX graph keeps outside, or with what is beside a
    Python file."""
    if path.suffix == ".py":
        yield from _beside(path, kept)
        return
    yield path
    if path.suffix == ".onnx":
        yield from (path.parent / each for each in external_files(path))


def _beside(path: Path, kept: Sequence[Path]) -> Iterator[Path]:
    """Nothing hidden, which may be secret (``.env``, ``.git``)."""
    beside = (file for file in _files(path.parent) if not _kept(file, kept))
    files = [file for file in beside if file != path]
    if sum(file.stat().st_size for file in files) > BESIDE_BYTES:
        raise InputRefused(
            "a Python file that a study names is shipped with what stands beside it, and that"
            f" is more than {BESIDE_BYTES // 2**20} MB",
            value=str(path.parent),
            next_step="put it, with what it reads, into a folder of its own",
        )
    yield path
    yield from files


def _files(folder: Path) -> Iterator[Path]:
    try:
        entries = sorted(folder.iterdir())
    except OSError as exc:
        raise InputRefused(
            f"a folder beside a Python file of the study cannot be read: {exc.strerror}",
            value=str(folder),
        ) from exc
    for each in entries:
        if each.name.startswith(".") or each.name == "__pycache__":
            continue
        if each.is_dir() and not each.is_symlink():
            yield from _files(each)
        elif each.is_file():
            yield each


def _kept(file: Path, kept: Sequence[Path]) -> bool:
    """A database's name also begins those of its other files (``-wal``, ``-shm``)."""
    of_database = {file.with_name(file.name.removesuffix(end)) for end in ("-wal", "-shm")}
    return any(each.absolute().is_relative_to(one) for one in kept for each in (file, *of_database))


# --------------------------------------------------------------------------- the paths of a study
def moved(study: Study, move: Callable[[Path], Path]) -> Study:
    """The study with each path of a file that it reads given by ``move``."""
    model, server, work = study.model, study.server, study.workload

    def maybe(path: Path | None) -> Path | None:
        return None if path is None else move(path)

    return replace(
        study,
        model=replace(model, repository=maybe(model.repository), onnx=maybe(model.onnx)),
        server=replace(server, requirements=maybe(server.requirements)),
        workload=replace(
            work,
            arrival=replace(work.arrival, trace=maybe(work.arrival.trace)),
            inputs=_moved_inputs(work.inputs, move),
        ),
        accuracy=None if study.accuracy is None else _moved_accuracy(study.accuracy, move),
        calibration=None
        if study.calibration is None
        else _moved_calibration(study.calibration, move),
    )


def _moved_inputs(inputs: InputSpec, move: Callable[[Path], Path]) -> InputSpec:
    return inputs if inputs.path is None else replace(inputs, path=move(inputs.path))


def _moved_accuracy(accuracy: AccuracySpec, move: Callable[[Path], Path]) -> AccuracySpec:
    found = _FUNCTION.fullmatch(accuracy.metric)
    return replace(
        accuracy,
        data=None if accuracy.data is None else _moved_inputs(accuracy.data, move),
        expected=None if accuracy.expected is None else move(accuracy.expected),
        metric=f"{move(Path(found['path']))}:{found['function']}" if found else accuracy.metric,
    )


def _moved_calibration(
    calibration: CalibrationSpec, move: Callable[[Path], Path]
) -> CalibrationSpec:
    return replace(calibration, data=_moved_inputs(calibration.data, move))
