"""The desks of the service, each with what it stands on."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from autotune.bootstrap.desk_promotions import Promotions
from autotune.bootstrap.desk_studies import Studies
from autotune.bootstrap.guard import Guard, Limits
from autotune.bootstrap.jobs import Jobs, submit_study
from autotune.bootstrap.schedules import Schedules
from autotune.service_ports import AccessDesk, Desks
from autotune.settings import Settings
from storage.service import ServiceStore


def compose(
    store: ServiceStore,
    *,
    settings: Settings,
    access: AccessDesk,
    limits: Limits,
    problems: Callable[[], Sequence[str]],
) -> Desks:
    """All of them on one database. ``limits`` are for what requests name."""
    return Desks(
        studies=Studies(
            store=store.trials,
            reader=store.reader,
            jobs=store.jobs,
            settings=settings,
            submit=lambda definition, by: submit_study(store.jobs, definition, by=by),
        ),
        jobs=Jobs(store.jobs, store.promotions, logs=settings.service_dir / "logs"),
        schedules=Schedules(store),
        promotions=Promotions(store),
        access=access,
        checks=Guard(limits),
        notices=store.notices.notices,
        problems=problems,
        figures=store.figures,
    )
