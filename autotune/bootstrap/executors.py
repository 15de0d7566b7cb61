"""Who carries a study's trials out: this machine, or a Ray cluster."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from autotune.bootstrap.session import StudySession
from autotune.core.errors import InputRefused
from autotune.core.study import Study
from autotune.ports import ProgressListener
from storage.opening import parse_url

AUTO = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class OnRay:
    """A Ray cluster at ``address``; ``slots``: how many trials side by side at most (None: as many
    as it has devices for); ``cpus``: how many cores a trial is given (None: two, or its GPU's share
    of its machine's); ``gpus``: how many GPUs, 0 or 1 (None: one where the cluster has any)."""

    address: str = AUTO
    slots: int | None = None
    cpus: int | None = None
    gpus: int | None = None

    def __post_init__(self) -> None:
        if not self.address.strip():
            raise InputRefused(
                "--ray-address is empty",
                value=self.address,
                next_step=f"{AUTO}: the cluster that this machine is part of; HOST:PORT: that one;"
                " local: one of this machine alone",
            )
        for name, value in (("--slots", self.slots), ("--slot-cpus", self.cpus)):
            if value is not None and value < 1:
                raise InputRefused(f"{name} is at least 1", value=value)
        if self.gpus not in (None, 0, 1):
            raise InputRefused(
                "--slot-gpus is 0 or 1: a trial has one GPU, or processor cores alone",
                value=self.gpus,
            )


@contextmanager
def open_study(  # noqa: PLR0913 - what, where to and from, on what, and who listens
    study: Study,
    *,
    db: str,
    out: Path,
    resume: bool,
    listen: ProgressListener,
    ray: OnRay | None = None,
) -> Iterator[StudySession]:
    """A study ready to run on this machine, or on a cluster; see `StudySession.open`."""
    if ray is None:
        with StudySession.open(study, db=db, out=out, resume=resume, listen=listen) as session:
            yield session
        return
    if importlib.util.find_spec("ray") is None:
        raise InputRefused(
            "--executor ray needs Ray Tune, which is not installed here",
            next_step="pip install 'triton-autotune[ray]'",
        )
    _refuse_told_password(db)
    from autotune.bootstrap.ray_session import open_on_ray  # noqa: PLC0415 - an extra; takes seconds

    with open_on_ray(study, ray, db=db, out=out, resume=resume, listen=listen) as session:
        yield session


def _refuse_told_password(db: str) -> None:
    """Ray keeps the command line of a cluster's drivers, and shows it at every node (`ray list
    jobs`)."""
    url = parse_url(db)
    secret = url.password or url.query.get("password")
    if secret and any(db in word for word in sys.orig_argv):
        raise InputRefused(
            "the database's password stands on the command line, which Ray shows at every node of"
            " its cluster",
            next_step="give the address by AUTOTUNE_DB instead of --db, or leave the password to"
            " PostgreSQL's passfile (~/.pgpass)",
        )
