"""Promotions that are ended by SIGKILL at every step, each in a child of its own.

Run apart, as ``python -m tests.killed CASE FOLDER``: it forks, which a process with threads had
better not. It prints how many steps there were, and fails where one of them left something mixed.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from autotune.adapters.deploy.directory import DirectoryDeployment
from autotune.core.promotions import Promotion, PromotionState, Target
from autotune.core.sla import Outcome
from autotune.retune.promote import Checked, Promoter
from autotune.service_ports import Release
from storage.service import ServiceStore
from tests import promoting
from tests.promoting import put, tree

LABEL = "p1"
MOST_STEPS = 1000
_CHANGES = {"os.rename", "os.link", "os.symlink", "os.mkdir", "os.rmdir", "os.remove", "os.chmod"}


class Killed:
    """Counts steps, and ends the process at the one that is its turn."""

    def __init__(self, at: int) -> None:
        self._left = at

    def step(self) -> None:
        self._left -= 1
        if self._left == -1:  # to kill is a step as well
            os.kill(os.getpid(), signal.SIGKILL)


def at_every_file_step(at: int) -> None:
    """From here on, each time that a file or a directory is about to be changed is a step. (The
    exchange itself is no audited event: what comes before it is, and what comes after.)"""
    killed = Killed(at)

    def heard(event: str, about: tuple[Any, ...]) -> None:
        if event in _CHANGES or (event == "open" and about[2] & (os.O_WRONLY | os.O_RDWR)):
            killed.step()

    sys.addaudithook(heard)


def survives(work: Callable[[int], None], at: int) -> bool:
    """Do it in a child that is killed at a step; whether it came to its end before that."""
    child = os.fork()
    if child == 0:
        try:
            work(at)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the child ends here
            sys.stderr.write(f"step {at}: {error!r}\n")
            sys.stderr.flush()
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return False
    assert os.waitstatus_to_exitcode(status) == 0
    return True


# ------------------------------------------------------------------------------------- the files
class Files:
    """A repository of which one model, or a pipeline's two steps, change."""

    def __init__(self, folder: Path, *, several: bool) -> None:
        self.repository = folder / "models"
        self.sidecar = folder / "models.autotune"
        if several:
            promoting.pipeline(self.repository)
            promoting.pipeline(folder / "release", batch=4)
            names = ["first", "second", "whole"]
        else:
            put(self.repository, "ocr")
            put(folder / "release", "ocr", batch=4, weights="w2")
            names = ["ocr"]
        put(self.repository, "bystander")
        self.release: Release = promoting.release(folder / "release", *names)
        self.old = tree(self.repository)

    @property
    def target(self) -> DirectoryDeployment:
        return DirectoryDeployment(self.repository, known=None)

    def apply(self, at: int) -> None:
        at_every_file_step(at)
        with self.target.locked():
            self.target.apply(self.release, label=LABEL)

    def restore(self, at: int) -> None:
        at_every_file_step(at)
        with self.target.locked():
            self.target.restore(LABEL)

    def recover(self) -> None:
        with self.target.locked():
            self.target.recover()
        assert not (self.sidecar / "journal.json").exists()
        assert not (self.sidecar / "staged").exists()


def new_of(folder: Path, *, several: bool) -> Any:
    files = Files(folder, several=several)
    files.target.apply(files.release, label=LABEL)
    return tree(files.repository)


def apply_case(folder: Path, *, several: bool) -> int:
    new = new_of(folder / "reference", several=several)
    for at in range(MOST_STEPS):
        files = Files(folder / str(at), several=several)
        if survives(files.apply, at):
            return at
        seen = tree(files.repository)
        assert seen in (files.old, new), f"mixed at step {at}"
        files.recover()
        assert tree(files.repository) == seen, f"changed by the recovery after step {at}"
        assert (files.sidecar / "kept" / LABEL).is_dir() == (seen == new), f"kept, at step {at}"
        files.target.apply(files.release, label=LABEL)
        assert tree(files.repository) == new
        files.target.restore(LABEL)
        assert tree(files.repository) == files.old
        shutil.rmtree(folder / str(at))
    raise AssertionError("it has no end")


def restore_case(folder: Path, *, several: bool) -> int:
    for at in range(MOST_STEPS):
        files = Files(folder / str(at), several=several)
        files.target.apply(files.release, label=LABEL)
        new = tree(files.repository)
        if survives(files.restore, at):
            return at
        seen = tree(files.repository)
        assert seen in (files.old, new), f"mixed at step {at}"
        files.recover()
        assert tree(files.repository) == seen, f"changed by the recovery after step {at}"
        files.target.restore(LABEL)
        assert tree(files.repository) == files.old
        shutil.rmtree(folder / str(at))
    raise AssertionError("it has no end")


# ------------------------------------------------------------------------------------- the store
class Stepping:
    """Anything, with a step before each of its calls."""

    def __init__(self, inner: Any, killed: Killed) -> None:
        self._inner, self._killed = inner, killed

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)

        def called(*args: Any, **options: Any) -> Any:
            self._killed.step()
            return method(*args, **options)

        return called


class Check:
    """A shadow check that comes out as it is told."""

    def __init__(self, outcome: Outcome) -> None:
        self._outcome = outcome

    def check(self) -> Checked:
        return Checked(outcome=self._outcome, words=str(self._outcome))


class Promoted:
    """A promotion in a database on disk, to a repository on disk where another one is in service;
    each time anew in the same place, so that the database is made once."""

    def __init__(self, folder: Path, outcome: Outcome) -> None:
        work, made = folder / "work", folder / "service.db"
        shutil.rmtree(work, ignore_errors=True)
        self.files = Files(work, several=False)
        self.outcome, self.champion, self.id = outcome, 1, 2
        self.db = str(work / "service.db")
        if not made.exists():
            with closing(ServiceStore(str(made))) as store:
                study = store.trials.create_study("s", {}, "d")
                for state in (PromotionState.DONE, PromotionState.APPROVED):
                    store.promotions.propose(self._promotion(study, state))
        shutil.copy(made, self.db)

    def _promotion(self, study: int, state: PromotionState) -> Promotion:
        return Promotion(
            id=0,
            model="ocr",
            target=Target(repository=self.files.repository),
            study_id=study,
            trial=0,
            candidate={},
            state=state,
        )

    def promoter(self, store: ServiceStore, killed: Killed | None = None) -> Promoter:
        promotions: Any = store.promotions
        target: Any = self.files.target
        if killed is not None:
            promotions, target = Stepping(promotions, killed), Stepping(target, killed)
        return Promoter(
            store=promotions,
            deployment=target,
            release=lambda: self.files.release,
            shadow=Check(self.outcome),
            tell=lambda *_: None,
            by="test",
            say=lambda _: None,
        )

    def promote(self, at: int) -> None:
        with closing(ServiceStore(self.db)) as store, self.files.target.locked():
            self.promoter(store, Killed(at)).promote(self.id)

    def roll_back(self, at: int) -> None:
        with closing(ServiceStore(self.db)) as store, self.files.target.locked():
            self.promoter(store, Killed(at)).roll_back(self.id, "why")

    def check(self, state: PromotionState, files: Any) -> None:
        with closing(ServiceStore(self.db)) as store:
            assert store.promotions.promotion(self.id).state is state
            champion = self.id if state is PromotionState.DONE else self.champion
            done = store.promotions.promotions(states=(PromotionState.DONE,))
            assert [each.id for each in done] == [champion]
        assert tree(self.files.repository) == files


def promotion_case(folder: Path, outcome: Outcome) -> int:
    """Gone on with by the same promotion, as a worker does that takes a job over."""
    new = new_of(folder / "reference", several=False)
    for at in range(MOST_STEPS):
        made = Promoted(folder, outcome)
        alive = survives(made.promote, at)
        if not alive:
            with closing(ServiceStore(made.db)) as store:
                state = store.promotions.promotion(made.id).state
                if state in (PromotionState.APPROVED, PromotionState.APPLYING):
                    made.promoter(store).promote(made.id)
        if outcome is Outcome.MISSES:
            made.check(PromotionState.FAILED, made.files.old)
        else:
            made.check(PromotionState.DONE, new)
        if alive:
            return at
    raise AssertionError("it has no end")


def given_up_case(folder: Path) -> int:
    """Met by another promotion to the same target, which has to find all as it was."""
    for at in range(MOST_STEPS):
        made = Promoted(folder, Outcome.MEETS)
        if survives(made.promote, at):
            return at
        with closing(ServiceStore(made.db)) as store:
            promotion = store.promotions.promotion(made.id)
            if promotion.state is PromotionState.APPLYING:
                made.promoter(store).give_up(promotion)
                made.check(PromotionState.FAILED, made.files.old)
    raise AssertionError("it has no end")


def rollback_case(folder: Path) -> int:
    for at in range(MOST_STEPS):
        made = Promoted(folder, Outcome.MEETS)
        with closing(ServiceStore(made.db)) as store:
            made.promoter(store).promote(made.id)
        alive = survives(made.roll_back, at)
        if not alive:
            with closing(ServiceStore(made.db)) as store:
                if store.promotions.promotion(made.id).state is PromotionState.DONE:
                    made.promoter(store).roll_back(made.id, "why")
        made.check(PromotionState.ROLLED_BACK, made.files.old)
        if alive:
            return at
    raise AssertionError("it has no end")


CASES: dict[str, Callable[[Path], int]] = {
    "apply-one": lambda folder: apply_case(folder, several=False),
    "apply-several": lambda folder: apply_case(folder, several=True),
    "restore-one": lambda folder: restore_case(folder, several=False),
    "restore-several": lambda folder: restore_case(folder, several=True),
    "promotion": lambda folder: promotion_case(folder, Outcome.MEETS),
    "promotion-that-misses": lambda folder: promotion_case(folder, Outcome.MISSES),
    "promotion-given-up": given_up_case,
    "rollback": rollback_case,
}


def main() -> None:
    """Of each case how many steps it had, or what went wrong."""
    failed = False
    setattr(os, "fsync", lambda _: None)  # noqa: B010 - SIGKILL loses nothing that was written
    for case in sys.argv[2:]:
        try:
            told = str(CASES[case](Path(sys.argv[1]) / case))
        except Exception:  # noqa: BLE001 - the other cases are tried all the same
            told, failed = repr(traceback.format_exc()), True
        sys.stdout.write(f"{case} {told}\n")
        sys.stdout.flush()
    sys.exit(failed)


if __name__ == "__main__":
    main()
