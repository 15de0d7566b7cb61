"""Model repositories: the model that is tuned, wherever its files come from."""

from __future__ import annotations

import difflib
import filecmp
import hashlib
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from autotune.adapters.hashes import sha256_of
from autotune.adapters.triton.artefacts import MODEL_FILE, Artefact
from autotune.adapters.triton.config import ModelConfig, parameter, read, render
from autotune.adapters.triton.onnx_graph import (
    OnnxGraph,
    declare_tensors,
    read_graph,
    require_batch_dimension,
)
from autotune.adapters.triton.runners import (
    ANY_HOST,
    ONNX_RUNNER,
    TORCH_FILES,
    TORCH_RUNNER,
    EmbeddedHost,
    onnx_config,
    torch_config,
)
from autotune.core.errors import InputRefused

CONFIG_FILE = "config.pbtxt"
RUNNER = ONNX_RUNNER
ONNX_FILE = "model.onnx"

DEFAULT_FILES = {
    "onnxruntime": (ONNX_FILE,),
    "python": ("model.py",),
    "tensorrt": ("model.plan",),
    "pytorch": TORCH_FILES,
    "openvino": ("model.xml", ONNX_FILE, "model.pdmodel", "model.pb"),
    "tensorflow": ("model.savedmodel", "model.graphdef"),
    "fil": ("xgboost.model", "xgboost.json", "model.txt", "checkpoint.tl"),
}
"""What each backend looks for in a version directory unless ``default_model_filename`` says
otherwise; other backends' files are not known here and not checked."""

_PLATFORMS = {
    "onnxruntime_onnx": "onnxruntime",
    "tensorrt_plan": "tensorrt",
    "pytorch_libtorch": "pytorch",
    "tensorflow_savedmodel": "tensorflow",
    "tensorflow_graphdef": "tensorflow",
}
_IGNORED = shutil.ignore_patterns("__pycache__", ".git", ".ipynb_checkpoints")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A model as a server finds it: ``repository/name`` holds ``config.pbtxt`` and versions.

    ``config`` is complete (inputs and outputs declared) and carries ``name``. ``digest``: SHA-256
    over the model's files and configuration. ``source``: the model's directory. ``onnx``: the ONNX
    file that served outputs can be compared with, None where there is none; ``torch``: so the
    TorchScript file or the exported program. ``runner``: served by autotune's own Python-backend
    runner for that file. ``native``: the user's own model that a runner stands in for, because the
    server at hand lacks its backend; None for any other model. ``composing``: the models that an
    ensemble needs, by name, in an order in which they can be loaded; empty for any other model.
    ``artefacts``: the variants that it can be served as, by name.
    """

    name: str
    repository: Path
    config: ModelConfig
    digest: str
    source: Path
    onnx: Path | None = None
    torch: Path | None = None
    runner: bool = False
    native: ServedModel | None = None
    composing: Mapping[str, ServedModel] = field(default_factory=dict)
    artefacts: Mapping[str, Artefact] = field(default_factory=dict)


# --------------------------------------------------------------------------- the user's repository
def from_repository(path: Path, name: str, workdir: Path) -> ServedModel:
    """A model of the user's own repository, served from where it is.

    A model without a config.pbtxt is accepted where its ONNX file tells what Triton would make of
    it; it is then served from a copy, ``workdir/completed``, that has one. An ensemble is read with
    all models that it needs, each as it would be alone; where one of them had to be completed, all
    of them are served from the copy. InputRefused, with what to do, for anything that a strict
    server would not load.
    """
    composing = {each: _read_alone(path, each, workdir) for each in _composing(path, name)}
    tuned = _read_alone(path, name, workdir)
    if not composing:
        return tuned
    pipeline = _pipeline(tuned, composing, workdir / "completed")
    _refuse_unservable(pipeline)
    return pipeline


def _read_alone(path: Path, name: str, workdir: Path) -> ServedModel:
    source = _model_directory(path, name)
    config = _own_config(source, name)
    versions = _versions(source, config)
    backend = backend_of(config, source)
    _require_model_files(source, config, versions, backend)
    _refuse_unmeasurable(config)
    graph = _onnx_graph(config, versions[-1]) if backend == "onnxruntime" else None
    if not config.input or not config.output:
        _complete(config, graph, source)
    runner = _runner_of(backend, versions)
    onnx = graph.path if graph else None
    if runner == ONNX_RUNNER:
        onnx = _first_file(versions[-1], [_told_file(config), ONNX_FILE])
    by_torch = backend == "pytorch" or runner == TORCH_RUNNER
    torch = _torch_file(config, versions[-1]) if by_torch else None
    if not (source / CONFIG_FILE).exists():
        path, source, onnx = _with_config_file(source, config, workdir, onnx)
    return ServedModel(
        name=name,
        repository=path,
        config=config,
        digest=_digest(source, config),
        source=source,
        onnx=onnx,
        torch=torch,
        runner=runner is not None,
    )


def backend_of(config: ModelConfig, source: Path) -> str:
    """The backend's name, found as Triton does (``AutoCompleteBackendFields``): from ``backend``,
    else from ``platform``, else from the file in the first version directory.
    """
    if config.HasField("ensemble_scheduling") or config.platform == "ensemble":
        return "ensemble"
    if config.backend or config.platform:
        return str(config.backend or _PLATFORMS.get(config.platform, config.platform))
    named = config.default_model_filename
    for version in sorted(_version_directories(source))[:1]:
        for backend, files in DEFAULT_FILES.items():
            if named in files or (not named and any((version / file).exists() for file in files)):
                return backend
    return ""


def loaded_versions(model: ServedModel) -> list[Path]:
    """The version directories that Triton loads, lowest first."""
    return _versions(model.source, model.config)


def _model_directory(path: Path, name: str) -> Path:
    _require_plain_name(name)
    if not path.is_dir():
        rule = "is a file, not a directory" if path.exists() else "does not exist"
        raise InputRefused(f"the model repository {rule}", value=str(path))
    source = path / name
    if source.is_dir():
        return source
    if (path / CONFIG_FILE).exists() or _version_directories(path):
        raise InputRefused(
            "the path is a model's own directory, not a repository of models",
            value=str(path),
            next_step=f"Give its parent directory and the name {path.resolve().name}.",
        )
    models = sorted(entry.name for entry in path.iterdir() if entry.is_dir())
    near = difflib.get_close_matches(name, models, n=3, cutoff=0.5)
    advice = f"Did you mean {' or '.join(near)}?" if near else f"It holds: {_listed(models)}."
    raise InputRefused(f"the repository {path} has no such model", value=name, next_step=advice)


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:10]) or "no model at all"
    return shown + (f" and {len(names) - 10} more" if len(names) > 10 else "")


def _require_plain_name(name: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*", name):
        raise InputRefused(
            "a model's name is a directory's name: letters, digits, '_', '.', '+' and '-', not"
            " beginning with '.'",
            value=name,
        )


# ------------------------------------------------------------------------------------ ensembles
def _composing(path: Path, name: str) -> list[str]:
    """The names of the models that an ensemble needs, its own steps' steps included, each after
    those that it needs itself; none for other models. InputRefused if one of them is not in the
    repository, or if an ensemble needs itself."""
    found: list[str] = []

    def visit(each: str, above: tuple[str, ...]) -> None:
        if each in above:
            circle = (*above[above.index(each) :], each)
            raise InputRefused("an ensemble cannot be a step of itself", value=" > ".join(circle))
        if each in found:
            return
        config = _own_config(_needed_directory(path, each, above), each)
        for step in config.ensemble_scheduling.step:
            visit(step.model_name, (*above, each))
        found.append(each)

    visit(name, ())
    return found[:-1]


def _needed_directory(path: Path, name: str, above: tuple[str, ...]) -> Path:
    try:
        return _model_directory(path, name)
    except InputRefused as error:
        if not above:
            raise
        raise InputRefused(
            f"the ensemble {above[-1]} has a step without a model: {error.rule}",
            value=name,
            next_step=error.next_step,
        ) from error


def _pipeline(
    tuned: ServedModel, composing: Mapping[str, ServedModel], repository: Path
) -> ServedModel:
    """An ensemble with its composing models, all in one repository: where they are not, as links
    in ``repository``."""
    everything = [*composing.values(), tuned]
    if len({model.repository for model in everything}) > 1:
        everything = [_moved(model, repository) for model in everything]
    *steps, whole = everything
    digests = "".join(f"\n{step.name} {step.digest}" for step in steps)
    return replace(
        whole,
        composing={step.name: step for step in steps},
        digest=hashlib.sha256((tuned.digest + digests).encode()).hexdigest(),
    )


def _moved(model: ServedModel, repository: Path) -> ServedModel:
    if model.repository == repository:
        return model
    source = _build(repository, model.name, lambda at: copy_tree(model.source, at, link=True))
    onnx, torch = (
        file and source / file.relative_to(model.source) for file in (model.onnx, model.torch)
    )
    return replace(model, repository=repository, source=source, onnx=onnx, torch=torch)


def _refuse_unservable(pipeline: ServedModel) -> None:
    """Triton's own rule for batch sizes (``ValidateEnsembleConfig``), and what the load cannot
    ask for."""
    for model in (*pipeline.composing.values(), pipeline):
        if model.config.HasField("sequence_batching"):
            raise InputRefused(
                "a step that batches sequences needs requests with a correlation id, which the load"
                " does not send",
                value=model.name,
                next_step="Tune the models beside it, or give it another batcher.",
            )
        own = model.config.max_batch_size
        for step in model.config.ensemble_scheduling.step:
            taken = pipeline.composing[step.model_name].config.max_batch_size
            if 0 < taken < own:
                raise InputRefused(
                    f"the ensemble {model.name} has max_batch_size {own}, but its step"
                    f" {step.model_name} takes {taken}: Triton refuses to load it",
                    next_step="Lower the ensemble's, or raise the step's, in its config.pbtxt.",
                )


def _own_config(source: Path, name: str) -> ModelConfig:
    file = source / CONFIG_FILE
    config = read(file) if file.exists() else ModelConfig()
    if config.name not in ("", name):
        raise InputRefused(
            f"{file}: the configuration's name must be that of its directory, {name!r}",
            value=config.name,
            next_step="Rename one of the two; Triton refuses to load it as it is.",
        )
    if config.max_batch_size < 0:
        raise InputRefused(f"{file}: max_batch_size is negative", value=config.max_batch_size)
    config.name = name
    return config


def _version_directories(source: Path) -> list[Path]:
    if not source.is_dir():
        return []
    return [entry for entry in source.iterdir() if entry.is_dir() and entry.name.isdecimal()]


def _versions(source: Path, config: ModelConfig) -> list[Path]:
    """The version directories that Triton would load, lowest first (``version_policy``)."""
    found = {int(entry.name): entry for entry in _version_directories(source) if entry.name != "0"}
    if not found:
        raise InputRefused(
            f"{source} has no version directory",
            next_step=f"Triton wants the model's file in {source.name}/1/.",
        )
    policy = config.version_policy
    if policy.HasField("specific"):
        wanted = sorted(version for version in policy.specific.versions if version in found)
        if not wanted:
            raise InputRefused(
                f"{source}: none of the versions of its version_policy exists",
                value=sorted(policy.specific.versions),
                next_step=f"It has {sorted(found)}.",
            )
    else:
        latest = policy.latest.num_versions if policy.HasField("latest") else 1
        wanted = sorted(found) if policy.HasField("all") else sorted(found)[-max(1, latest) :]
    return [found[version] for version in wanted]


def _require_model_files(
    source: Path, config: ModelConfig, versions: list[Path], backend: str
) -> None:
    if not backend:
        raise InputRefused(
            f"{source}: neither its configuration nor its files tell which backend serves it",
            next_step=f"Say backend: or platform: in {source.name}/{CONFIG_FILE}.",
        )
    named = config.default_model_filename
    files = (named,) if named else DEFAULT_FILES.get(backend, ())
    files = (*files, *config.cc_model_filenames.values())
    for version in versions:
        if files and backend != "ensemble" and not any((version / file).exists() for file in files):
            raise InputRefused(
                f"{version} has no model file for the backend {backend!r}",
                next_step=f"It should hold {' or '.join(files)}.",
            )


def _refuse_unmeasurable(config: ModelConfig) -> None:
    if config.model_transaction_policy.decoupled:
        raise InputRefused(
            "a decoupled model answers a request any number of times, over a stream, and cannot be"
            " measured request by request",
            value=config.name,
        )


def _onnx_graph(config: ModelConfig, version: Path) -> OnnxGraph:
    file = version / (config.default_model_filename or ONNX_FILE)
    if file.is_dir():  # the backend also takes a directory that holds model.onnx and its weights
        file /= ONNX_FILE
    return read_graph(file)


def _complete(config: ModelConfig, graph: OnnxGraph | None, source: Path) -> None:
    """Declare what the configuration leaves to auto-completion, as the ONNX Runtime backend would.

    Without a maximum of its own a model that takes batches gets Triton's default of 4 and the
    dynamic batcher ("Default Max Batch Size and Dynamic Batcher" in Triton's documentation).
    """
    if graph is None:
        file = source / CONFIG_FILE
        lack, add = "declares no input or no output", "Add them"
        if not file.exists():
            lack, add = "does not exist", "Write one, with the model's inputs and outputs"
        raise InputRefused(
            f"{file} {lack}: a server without auto-completion cannot load the model",
            next_step=f"{add}; a server that has the model loaded prints its configuration at"
            f" /v2/models/{source.name}/config.",
        )
    undeclared = not config.input and not config.output and config.max_batch_size == 0
    if undeclared and graph.batched:
        config.max_batch_size = 4
        if config.WhichOneof("scheduling_choice") is None:
            config.dynamic_batching.SetInParent()
    declare_tensors(config, graph, batched=config.max_batch_size > 0)
    if not config.backend and not config.platform:
        config.backend = "onnxruntime"


def _first_file(version: Path, names: Sequence[str]) -> Path | None:
    return next((version / name for name in names if name and (version / name).is_file()), None)


def _torch_file(config: ModelConfig, version: Path) -> Path | None:
    by_runner = config.backend == "python"
    named = _told_file(config) if by_runner else config.default_model_filename
    return _first_file(version, [named, *TORCH_FILES])


def _told_file(config: ModelConfig) -> str:
    """What one of our runners is told to serve; empty where it looks for the usual name."""
    return parameter(config, MODEL_FILE) or ""


def _runner_of(backend: str, versions: list[Path]) -> Path | None:
    """Which of our runners the model is served by, as one of an earlier export is."""
    own = versions[-1] / "model.py"
    if backend != "python" or not own.is_file():
        return None
    runners = (ONNX_RUNNER, TORCH_RUNNER)
    return next((each for each in runners if filecmp.cmp(own, each, shallow=False)), None)


def _with_config_file(
    source: Path, config: ModelConfig, workdir: Path, onnx: Path | None
) -> tuple[Path, Path, Path | None]:
    def fill(target: Path) -> None:
        copy_tree(source, target, link=True)
        (target / CONFIG_FILE).write_text(render(config), encoding="utf-8")

    repository = workdir / "completed"
    built = _build(repository, config.name, fill)
    return repository, built, onnx and built / onnx.relative_to(source)


# ------------------------------------------------------------------------------------- ONNX files
def from_onnx(
    onnx_path: Path, name: str, workdir: Path, runner_source: Path = RUNNER
) -> ServedModel:
    """Build a repository in ``workdir`` that serves an ONNX file through our Python-backend runner.

    Its configuration is what a newcomer would start from: batch size 1, no dynamic batcher, one
    instance of one thread. InputRefused as `read_graph` and `require_batch_dimension` say.
    """
    _require_plain_name(name)
    graph = read_graph(onnx_path.absolute())
    require_batch_dimension(graph)
    config = ModelConfig(name=name, backend="python", max_batch_size=1)
    declare_tensors(config, graph, batched=True)
    config.instance_group.add(count=1, kind="KIND_CPU")
    config.parameters["intra_op_threads"].string_value = "1"

    def fill(target: Path) -> None:
        version = target / "1"
        version.mkdir()
        _put_runner(version, graph, runner_source)

    made = _made(config, name, workdir, fill)
    return replace(made, onnx=made.source / "1" / ONNX_FILE, runner=True)


def from_configuration(
    config: ModelConfig,
    name: str,
    workdir: Path,
    composing: Mapping[str, ModelConfig] | None = None,
) -> ServedModel:
    """A model of which only the configuration is at hand: one that a remote server has loaded.
    ``composing``: those of the models that an ensemble needs, by name, in loadable order.

    Its export is the config.pbtxt alone; the model's files are the remote server's own.
    """
    models = {
        each: _configured(own, each, workdir)
        for each, own in {**(composing or {}), name: config}.items()
    }
    tuned = models.pop(name)
    if not models:
        return tuned
    pipeline = _pipeline(tuned, models, workdir)
    _refuse_unservable(pipeline)
    return pipeline


def _configured(config: ModelConfig, name: str, workdir: Path) -> ServedModel:
    _require_plain_name(name)
    return _made(config, name, workdir)


def _made(
    config: ModelConfig,
    name: str,
    workdir: Path,
    fill: Callable[[Path], None] = lambda _: None,
) -> ServedModel:
    """A model of that configuration in a directory of its own, with what ``fill`` puts there."""

    def whole(target: Path) -> None:
        fill(target)
        (target / CONFIG_FILE).write_text(render(config), encoding="utf-8")

    source = _build(workdir, name, whole)
    return ServedModel(
        name=name,
        repository=workdir,
        config=config,
        digest=_digest(source, config),
        source=source,
    )


def adapt_for_embedded(
    model: ServedModel,
    workdir: Path,
    runner_source: Path = ONNX_RUNNER,
    *,
    host: EmbeddedHost = ANY_HOST,
) -> ServedModel:
    """The same model for a server that has the Python backend alone.

    A model of the ONNX Runtime or the pytorch backend is served through one of our runners, from
    ``workdir/runner``, with the configuration's backend changed, each instance placed where the
    ``host`` lets it run, and all else kept; the result's ``native`` is the model given, which is
    what gets exported. So is each such step of an ensemble, whose own ``native`` is then the
    ensemble given. Other models are returned as they are if their backend is Python, or refused.
    """
    if not model.composing:
        return _adapted(model, workdir, runner_source, host)
    steps = {
        name: _adapted(step, workdir, runner_source, host) for name, step in model.composing.items()
    }
    if not any(step.native for step in steps.values()):
        return model
    return replace(_pipeline(model, steps, workdir / "runner"), native=model)


def _adapted(
    model: ServedModel, workdir: Path, runner_source: Path, host: EmbeddedHost
) -> ServedModel:
    backend = backend_of(model.config, model.source)
    if backend in ("python", "ensemble"):
        return model
    if backend == "onnxruntime":

        def put(version: Path, target: Path) -> Path:
            return _put_runner(target, _onnx_graph(model.config, version), runner_source)

        return _through_runner(model, workdir, onnx_config(model.config, host), put)
    if backend == "pytorch":

        def put_torch(version: Path, target: Path) -> Path:
            return _put_torch_runner(target, _torch_file(model.config, version))

        return _through_runner(model, workdir, torch_config(model.config, host), put_torch)
    raise InputRefused(
        "the embedded server has the Python backend alone (and stands in for ONNX Runtime and"
        " PyTorch)",
        value=f"{backend} of {model.name}",
        next_step="Use launch: docker, binary or remote for this model.",
    )


def _through_runner(
    model: ServedModel, workdir: Path, config: ModelConfig, put: Callable[[Path, Path], Path]
) -> ServedModel:
    """``put`` fills a version directory from the model's own, and says which file it serves. The
    digest is the same on every host, wherever its instances are placed."""
    versions = _versions(model.source, model.config)
    served: list[str] = []

    def fill(target: Path) -> None:
        copy_tree(model.source, target, link=True, only_files=True)
        for version in versions:
            (target / version.name).mkdir()
            file = put(version, target / version.name)
            served.append(file.relative_to(target).as_posix())
        (target / CONFIG_FILE).unlink(missing_ok=True)
        (target / CONFIG_FILE).write_text(render(config), encoding="utf-8")

    repository = workdir / "runner"
    source = _build(repository, model.name, fill)
    return replace(
        model,
        repository=repository,
        config=config,
        digest=_digest(source, model.config),
        source=source,
        onnx=model.onnx and source / served[-1],
        torch=model.torch and source / served[-1],
        runner=True,
        native=model,
    )


def _put_torch_runner(version: Path, file: Path | None) -> Path:
    """By its own suffix, which says what it is, whatever its name was."""
    assert file is not None, "`_require_model_files` has looked"
    shutil.copyfile(TORCH_RUNNER, version / "model.py")
    target = version / TORCH_FILES[file.suffix == ".pt2"]
    _link(file, target)
    return target


def _put_runner(version: Path, graph: OnnxGraph, runner_source: Path) -> Path:
    if not runner_source.is_file():
        raise InputRefused("the runner's model.py is missing", value=str(runner_source))
    shutil.copyfile(runner_source, version / "model.py")
    _link(graph.path, version / ONNX_FILE)
    for location in graph.external:
        target = version / location
        target.parent.mkdir(parents=True, exist_ok=True)
        _link(graph.path.parent / location, target)
    return version / ONNX_FILE


# ------------------------------------------------------------------------------------------- files
def copy_tree(
    source: Path,
    target: Path,
    *,
    link: bool,
    only_files: bool = False,
    without: Collection[str] = (),
) -> None:
    """Copy what a model's directory holds into ``target``, made if need be; caches are left out,
    and what has a name of ``without``.

    ``link``: hard links where the file system takes them; for reading only. ``only_files``: leave
    the version directories out. Symbolic links are followed, so that the copy stands alone.
    """

    def skipped(directory: str, names: list[str]) -> set[str]:
        ignored = set(_IGNORED(directory, names)) | set(without)
        if only_files and Path(directory) == source:
            ignored |= {entry.name for entry in _version_directories(source)}
        return ignored

    copy: Callable[[str, str], object] = shutil.copy2
    if link:
        copy = _link_names
    shutil.copytree(source, target, ignore=skipped, copy_function=copy, dirs_exist_ok=True)
    for directory, _, _ in os.walk(target):  # a read-only original makes a read-only copy
        Path(directory).chmod(Path(directory).stat().st_mode | stat.S_IRWXU)


def _link_names(source: str, target: str) -> None:
    _link(Path(source), Path(target))


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source.resolve(), target)
    except OSError:
        shutil.copy2(source, target)


def _build(workdir: Path, name: str, fill: Callable[[Path], None]) -> Path:
    """Make ``workdir/name`` anew, complete or not at all."""
    target = workdir / name
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=workdir, prefix=f".{name}-") as scratch:
            built = Path(scratch) / name
            built.mkdir()
            fill(built)
            shutil.rmtree(target, ignore_errors=True)
            built.rename(target)
    except OSError as error:
        raise InputRefused(
            f"cannot build a model repository in {workdir}: {error}",
            next_step="Is the directory writable, and is there space left?",
        ) from error
    return target


def _digest(source: Path, config: ModelConfig) -> str:
    """SHA-256 over every file of the model and the configuration, by relative path."""
    whole = hashlib.sha256(render(config).encode())
    for file in sorted(files_of(source)):
        relative = file.relative_to(source).as_posix()
        if relative == CONFIG_FILE:
            continue
        whole.update(f"\n{relative} {sha256_of(file)}".encode())
    return whole.hexdigest()


def files_of(source: Path) -> Iterator[Path]:
    """The files below a model's directory, caches left out; symbolic links are followed."""
    for directory, names, files in os.walk(source, followlinks=True):
        names[:] = sorted(set(names) - _IGNORED(directory, names))
        yield from (Path(directory) / file for file in files)
