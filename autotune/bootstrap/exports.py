"""The exporter of a study, with the kind of server that serves its exports again."""

from __future__ import annotations

from pathlib import Path

from autotune.adapters.triton.export import RepositoryExporter
from autotune.adapters.triton.repository import ServedModel, from_repository
from autotune.adapters.triton.runners import EmbeddedHost
from autotune.adapters.triton.servers import Servers
from autotune.bootstrap.models import gpus_of
from autotune.core.study import Launch, Study
from autotune.ports import Server


def exporter(study: Study, model: ServedModel, servers: Servers, work: Path) -> RepositoryExporter:
    """Writes exports and serves them again: a remote server, which has its own repository, under
    the exported configuration; any other from the exported files alone."""

    def strict(repository: Path, name: str) -> Server:
        if study.server.launch is Launch.REMOTE:
            return servers.tuned(study.server, model)
        return servers.strict(study.server, from_repository(repository, name, work / "strict"))

    host = EmbeddedHost(gpus=gpus_of(study.server), python=lambda: servers.python(study.server))
    return RepositoryExporter(model, strict, workdir=work / "strict", host=host)
