"""A model repository directory as a promotion's target."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import pytest

from autotune.adapters import durable
from autotune.adapters.deploy import directory as module
from autotune.adapters.deploy import merging, sidecar
from autotune.adapters.deploy.directory import DirectoryDeployment
from autotune.adapters.deploy.served import Known
from autotune.adapters.triton.config import parse
from autotune.core.errors import AutotuneError, ExportFailed, InputRefused
from autotune.service_ports import Release
from tests import promoting
from tests.promoting import put, tree

MODEL = "ocr"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """One model that is going to change, and one that is not."""
    put(tmp_path / "models", MODEL)
    put(tmp_path / "models", "bystander")
    return tmp_path / "models"


@pytest.fixture
def new(tmp_path: Path) -> Release:
    """The same files with a larger batch."""
    put(tmp_path / "release", MODEL, batch=8)
    return promoting.release(tmp_path / "release", MODEL)


def target(repository: Path, known: Sequence[Known] | None = None) -> DirectoryDeployment:
    return DirectoryDeployment(repository, known=known)


def found(text: str, *, completed: bool = False) -> Sequence[Known]:
    return [Known(configs={MODEL: parse(text, MODEL)}, completed=completed)]


# ------------------------------------------------------------------------------------ one model
def test_a_promotion_brings_the_release_and_leaves_other_models_alone(
    repository: Path, new: Release
) -> None:
    before = tree(repository)
    target(repository).apply(new, label="p1")
    after = tree(repository)
    changed = {path for path in {**before, **after} if before.get(path) != after.get(path)}
    assert changed == {f"{MODEL}/config.pbtxt"}
    assert after[f"{MODEL}/config.pbtxt"] == promoting.config(MODEL, 8)
    target(repository).verify(new)


def test_what_was_replaced_is_kept_and_put_back_byte_for_byte(
    repository: Path, new: Release
) -> None:
    before = tree(repository)
    kept = target(repository).apply(new, label="p1")
    assert tree(Path(kept) / MODEL) == tree_of(before, MODEL)
    target(repository).restore(kept)
    assert tree(repository) == before


def tree_of(whole: object, name: str) -> object:
    assert isinstance(whole, dict)
    return {k.removeprefix(f"{name}/"): v for k, v in whole.items() if k.startswith(f"{name}/")}


def test_to_put_back_twice_is_to_put_back_once(repository: Path, new: Release) -> None:
    before = tree(repository)
    kept = target(repository).apply(new, label="p1")
    target(repository).restore(kept)
    target(repository).restore(kept)
    assert tree(repository) == before


def test_to_apply_twice_keeps_what_the_first_replaced(repository: Path, new: Release) -> None:
    before = tree(repository)
    assert target(repository).apply(new, label="p1") == target(repository).apply(new, label="p1")
    target(repository).restore("p1")
    assert tree(repository) == before


def test_by_a_label_under_which_nothing_was_applied_nothing_is_put_back(
    repository: Path, new: Release
) -> None:
    before = tree(repository)
    target(repository).preflight(new)
    target(repository).restore("p1")
    assert tree(repository) == before


def test_what_is_not_kept_any_more_cannot_be_put_back(repository: Path) -> None:
    gone = repository.with_name("models.autotune") / "kept" / "p1"
    with pytest.raises(ExportFailed, match="not kept any more"):
        target(repository).restore(str(gone))


def test_a_model_that_is_new_there_is_taken_out_again(repository: Path, tmp_path: Path) -> None:
    before = tree(repository)
    put(tmp_path / "release", "fresh", batch=4)
    new = promoting.release(tmp_path / "release", "fresh")
    kept = target(repository).apply(new, label="p1")
    assert (repository / "fresh" / "config.pbtxt").exists()
    target(repository).restore(kept)
    assert tree(repository) == before


def test_promotions_are_undone_one_after_the_other(repository: Path, tmp_path: Path) -> None:
    states, kept = [tree(repository)], []
    for i in range(1, 4):
        put(tmp_path / f"release{i}", MODEL, batch=2**i)
        new = promoting.release(tmp_path / f"release{i}", MODEL)
        kept.append(target(repository).apply(new, label=f"p{i}"))
        states.append(tree(repository))
    for i in (3, 2, 1):
        target(repository).restore(kept[i - 1])
        assert tree(repository) == states[i - 1]


def test_the_last_five_versions_of_each_model_are_kept(repository: Path, tmp_path: Path) -> None:
    for i, model in enumerate(["bystander", *[MODEL] * 7], start=1):
        put(tmp_path / "release", model, batch=i + 1)
        target(repository).apply(promoting.release(tmp_path / "release", model), label=f"p{i}")
    kept = repository.with_name("models.autotune") / "kept"
    assert sorted(each.name for each in kept.iterdir()) == ["p1", "p4", "p5", "p6", "p7", "p8"]


def test_what_is_gone_from_where_it_was_kept_is_not_taken_for_what_was_not_there(
    repository: Path, new: Release
) -> None:
    kept = target(repository).apply(new, label="p1")
    shutil.rmtree(Path(kept) / MODEL)
    before = tree(repository)
    with pytest.raises(ExportFailed, match="not kept any more"):
        target(repository).restore(kept)
    assert tree(repository) == before


def latest(model: Path) -> int:
    """As a server looks for it: the time of the folder, and of all below it."""
    return max(each.stat().st_mtime_ns for each in (model, *model.rglob("*")))


def test_whichever_way_it_goes_what_is_in_service_is_newer_than_what_was(
    repository: Path, new: Release
) -> None:
    """Else a server says that it has loaded it, and goes on with the model that it has."""
    model = repository / MODEL
    os.utime(model / "1" / "weights.bin", (4e9, 4e9))  # by a clock that ran ahead
    times = [(latest(model), latest(model / "1"))]
    kept = target(repository).apply(new, label="p1")
    times.append((latest(model), latest(model / "1")))
    target(repository).restore(kept)
    times.append((latest(model), latest(model / "1")))
    for before, after in itertools.pairwise(times):
        assert after[0] > before[0]
        assert after[1] > before[1]


def test_what_putting_back_would_change_is_told_and_nothing_once_it_was(
    repository: Path, new: Release
) -> None:
    (new.repository / MODEL / "1" / "weights.bin").write_text("others")
    (new.repository / MODEL / "1" / "fresh.bin").write_text("new")
    assert not target(repository).undoing("p1")
    kept = target(repository).apply(new, label="p1")
    (repository / MODEL / "config.pbtxt").write_text(promoting.config(MODEL, 3))
    told = target(repository).undoing(kept)
    assert "-max_batch_size: 3\n+max_batch_size: 1\n" in told
    files = [line for line in told.splitlines() if line.startswith("#")]
    assert files == [f"# {MODEL}/1/weights.bin: put back", f"# {MODEL}/1/fresh.bin: taken out"]
    target(repository).restore(kept)
    assert not target(repository).undoing(kept)


@pytest.mark.parametrize("large", [0, 1000], ids=["large", "small"])
def test_large_files_that_stay_take_no_room_and_small_ones_are_copied(
    repository: Path, new: Release, monkeypatch: pytest.MonkeyPatch, large: int
) -> None:
    monkeypatch.setattr(merging, "LARGE_BYTES", large)
    weights = repository / MODEL / "1" / "weights.bin"
    before = weights.stat().st_ino
    target(repository).apply(new, label="p1")
    assert (weights.stat().st_ino == before) == (large == 0)


def test_a_small_file_edited_in_place_comes_back_as_it_was(repository: Path, new: Release) -> None:
    before = tree(repository)
    kept = target(repository).apply(new, label="p1")
    (repository / MODEL / "1" / "model.py").write_text("# edited\n")
    target(repository).restore(kept)
    assert tree(repository) == before


def test_rights_are_those_of_what_was_there(repository: Path, new: Release) -> None:
    (repository / MODEL).chmod(0o750)
    (repository / MODEL / "config.pbtxt").chmod(0o640)
    target(repository).apply(new, label="p1")
    assert (repository / MODEL).stat().st_mode & 0o777 == 0o750
    assert (repository / MODEL / "config.pbtxt").stat().st_mode & 0o777 == 0o640


def test_what_is_new_is_as_open_as_the_repository(repository: Path, tmp_path: Path) -> None:
    """However closed the releases of a service are."""
    repository.chmod(0o775)
    put(tmp_path / "release", "fresh")
    for each in (tmp_path / "release" / "fresh").rglob("*"):
        each.chmod(0o700 if each.is_dir() else 0o600)
    target(repository).apply(promoting.release(tmp_path / "release", "fresh"), label="p1")
    fresh = repository / "fresh"
    assert {each.stat().st_mode & 0o777 for each in (fresh, fresh / "1")} == {0o775}
    assert (fresh / "1" / "weights.bin").stat().st_mode & 0o777 == 0o664
    for each in ("lock", "kept", "staged"):
        beside = repository.with_name("models.autotune") / each
        assert not beside.exists() or beside.stat().st_mode & 0o060 == 0o060


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")
def test_whoever_promotes_the_owner_stays(repository: Path, new: Release) -> None:
    """So that others who may write there can promote afterwards."""
    for each in (repository, *repository.rglob("*")):
        os.chown(each, 1234, 1234)
    with target(repository).locked():
        target(repository).apply(new, label="p1")
    beside = repository.with_name("models.autotune")
    others = {
        str(each)
        for folder in (repository, beside)
        for each in (folder, *folder.rglob("*"))
        if each.stat().st_uid != 1234 and each.name != "manifest.json"
    }
    assert not others


def test_access_lists_stay(repository: Path, new: Release) -> None:
    config = repository / MODEL / "config.pbtxt"
    entries = [(1, 6, 2**32 - 1), (2, 4, 1234), (4, 4, 2**32 - 1), (16, 4, 2**32 - 1)]
    entries.append((32, 0, 2**32 - 1))
    acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *each) for each in entries)
    try:
        os.setxattr(config, "system.posix_acl_access", acl)
    except OSError:
        pytest.skip("this file system has no access lists")
    target(repository).apply(new, label="p1")
    assert os.getxattr(config, "system.posix_acl_access") == acl


# ------------------------------------------------------------------ what the target has beyond ours
def test_labels_and_other_versions_are_kept_and_told(repository: Path, new: Release) -> None:
    (repository / MODEL / "labels.txt").write_text("cat\n")
    (new.repository / MODEL / "1").rename(new.repository / MODEL / "2")
    diff = target(repository).preflight(new)
    assert f"# {MODEL}/labels.txt: kept, though not of the release" in diff
    assert f"# {MODEL}/1/weights.bin: kept, though not of the release" in diff
    assert f"# {MODEL}/2/weights.bin: new" in diff
    target(repository).apply(new, label="p1")
    assert (repository / MODEL / "labels.txt").read_text() == "cat\n"
    assert (repository / MODEL / "1" / "weights.bin").exists()
    target(repository).verify(new)


def test_a_version_of_the_release_takes_the_place_of_the_one_there(
    repository: Path, new: Release
) -> None:
    (repository / MODEL / "1" / "old.bin").write_text("old")
    (new.repository / MODEL / "1" / "weights.bin").write_text("w2")
    diff = target(repository).preflight(new)
    assert f"# {MODEL}/1/old.bin: taken out" in diff
    assert f"# {MODEL}/1/weights.bin: replaced" in diff
    target(repository).apply(new, label="p1")
    assert not (repository / MODEL / "1" / "old.bin").exists()
    assert (repository / MODEL / "1" / "weights.bin").read_text() == "w2"


def test_a_newer_version_in_service_is_not_given_a_configuration_that_was_not_measured_with_it(
    repository: Path, new: Release
) -> None:
    (repository / MODEL / "2").mkdir()
    with pytest.raises(InputRefused, match=r"another version of ocr.*\(got '2'\)"):
        target(repository).preflight(new)


def test_a_release_of_a_configuration_alone_leaves_the_files(
    repository: Path, tmp_path: Path
) -> None:
    (tmp_path / "release" / MODEL).mkdir(parents=True)
    (tmp_path / "release" / MODEL / "config.pbtxt").write_text(promoting.config(MODEL, 8))
    target(repository).apply(promoting.release(tmp_path / "release", MODEL), label="p1")
    assert (repository / MODEL / "1" / "weights.bin").read_text() == "w1"
    assert "max_batch_size: 8" in (repository / MODEL / "config.pbtxt").read_text()


def test_a_release_of_a_configuration_alone_needs_the_model_there(
    repository: Path, tmp_path: Path
) -> None:
    (tmp_path / "release" / "fresh").mkdir(parents=True)
    (tmp_path / "release" / "fresh" / "config.pbtxt").write_text(promoting.config("fresh"))
    with pytest.raises(InputRefused, match="has its configuration alone"):
        target(repository).preflight(promoting.release(tmp_path / "release", "fresh"))


def test_what_is_in_service_already_makes_no_diff(repository: Path, tmp_path: Path) -> None:
    put(tmp_path / "release", MODEL)
    assert not target(repository).preflight(promoting.release(tmp_path / "release", MODEL))


def test_caches_that_a_server_writes_are_no_difference(repository: Path, new: Release) -> None:
    target(repository).apply(new, label="p1")
    (repository / MODEL / "1" / "__pycache__").mkdir()
    (repository / MODEL / "1" / "__pycache__" / "model.pyc").write_text("x")
    target(repository).verify(new)


def test_a_symbolic_link_stays_one_and_leads_to_where_it_did(
    repository: Path, new: Release, tmp_path: Path
) -> None:
    (tmp_path / "weights.bin").write_text("w1")
    weights = repository / MODEL / "1" / "weights.bin"
    weights.unlink()
    weights.symlink_to("../../../weights.bin")
    target(repository).apply(new, label="p1")
    assert weights.is_symlink()
    assert weights.read_text() == "w1"


def test_a_version_that_lies_elsewhere_stays_there(
    repository: Path, new: Release, tmp_path: Path
) -> None:
    (repository / MODEL / "1").rename(tmp_path / "store")
    (repository / MODEL / "1").symlink_to("../../store")
    target(repository).apply(new, label="p1")
    assert (repository / MODEL / "1").is_symlink()
    target(repository).verify(new)


def test_a_model_that_is_a_link_comes_back_as_one(
    repository: Path, new: Release, tmp_path: Path
) -> None:
    (repository / MODEL).rename(tmp_path / "store")
    (repository / MODEL).symlink_to("../store")
    (tmp_path / "blob").write_text("w1")
    (tmp_path / "store" / "1" / "weights.bin").unlink()
    (tmp_path / "store" / "1" / "weights.bin").symlink_to("../../blob")
    kept = target(repository).apply(new, label="p1")
    target(repository).verify(new)
    assert (repository / MODEL / "1" / "weights.bin").readlink() == tmp_path / "store/1/../../blob"
    assert (tmp_path / "store" / "config.pbtxt").read_text() == promoting.config(MODEL)
    target(repository).restore(kept)
    assert (repository / MODEL).is_symlink()
    assert (repository / MODEL / "config.pbtxt").read_text() == promoting.config(MODEL)


# ------------------------------------------------------------------------------ a pipeline's models
@pytest.fixture
def pipelines(tmp_path: Path) -> tuple[Path, Release]:
    promoting.pipeline(tmp_path / "models")
    put(tmp_path / "models", "bystander")
    (tmp_path / "models" / "README").write_text("ours\n")
    promoting.pipeline(tmp_path / "release", batch=4)
    new = promoting.release(tmp_path / "release", "first", "second", "whole")
    return tmp_path / "models", new


def test_several_models_change_with_their_whole_repository(
    pipelines: tuple[Path, Release],
) -> None:
    repository, new = pipelines
    before, number = tree(repository), repository.stat().st_ino
    kept = target(repository).apply(new, label="p1")
    after = tree(repository)
    changed = {path for path in {**before, **after} if before.get(path) != after.get(path)}
    assert changed == {"first/config.pbtxt", "second/config.pbtxt"}
    assert repository.stat().st_ino != number
    target(repository).restore(kept)
    assert tree(repository) == before


def test_of_a_pipeline_with_one_step_that_changes_that_alone_is_exchanged(
    pipelines: tuple[Path, Release],
) -> None:
    repository, new = pipelines
    put(new.repository, "second")
    number = repository.stat().st_ino
    target(repository).apply(new, label="p1")
    assert repository.stat().st_ino == number
    target(repository).verify(new)


def test_a_model_added_since_outlasts_the_rollback_of_a_whole_repository(
    pipelines: tuple[Path, Release],
) -> None:
    repository, new = pipelines
    before = tree(repository)
    kept = target(repository).apply(new, label="p1")
    put(repository, "later")
    target(repository).restore(kept)
    assert tree(repository) == {**before, **tree_with("later", repository)}


def test_a_model_added_while_a_whole_repository_is_put_back_is_not_lost(
    pipelines: tuple[Path, Release], monkeypatch: pytest.MonkeyPatch
) -> None:
    repository, new = pipelines
    before = tree(repository)
    kept = target(repository).apply(new, label="p1")

    def meanwhile(root: Path) -> None:
        if not (repository / "later").exists():
            put(repository, "later")

    monkeypatch.setattr(module, "sync_tree", meanwhile)
    target(repository).restore(kept)
    assert tree(repository) == {**before, **tree_with("later", repository)}


def tree_with(name: str, repository: Path) -> dict[str, str]:
    return {name: "directory"} | {
        f"{name}/{path}": what for path, what in tree(repository / name).items()
    }


# --------------------------------------------------------------------------------------- refusals
def test_a_configuration_that_the_study_found_is_replaced(repository: Path, new: Release) -> None:
    known = found(promoting.config(MODEL))
    assert "max_batch_size: 8" in target(repository, known).preflight(new)


def test_a_file_that_the_study_found_as_its_server_had_completed_it_is_replaced(
    repository: Path, new: Release
) -> None:
    completed = f"{promoting.config(MODEL)} version_policy {{ latest {{ num_versions: 1 }} }}"
    assert target(repository, found(completed, completed=True)).preflight(new)
    with pytest.raises(InputRefused, match="neither"):
        target(repository, found(completed)).preflight(new)


@pytest.mark.parametrize("known", [[], found(promoting.config(MODEL, 2))], ids=["none", "other"])
def test_a_configuration_that_somebody_else_put_there_is_refused_with_the_difference(
    repository: Path, new: Release, known: Sequence[Known]
) -> None:
    before = tree(repository)
    with pytest.raises(InputRefused, match=r"(?s)neither the one.*\+max_batch_size: 1") as refused:
        target(repository, known).preflight(new)
    assert "--anyway" in refused.value.next_step
    with pytest.raises(InputRefused):
        target(repository, known).apply(new, label="p1")
    assert tree(repository) == before


WEIGHTS = "1/weights.bin"


@pytest.mark.parametrize("known", ["w1", "other"])
def test_a_file_that_somebody_else_put_there_is_not_overwritten(
    repository: Path, new: Release, known: str
) -> None:
    """The configuration is the one that is known."""
    (new.repository / MODEL / WEIGHTS).write_text("w2")
    digest = hashlib.sha256(known.encode()).hexdigest()
    (config,) = found(promoting.config(MODEL))
    deployment = target(repository, [replace(config, files={MODEL: {WEIGHTS: digest}})])
    if known == "w1":
        assert deployment.preflight(new)
        return
    with pytest.raises(InputRefused, match=f"{MODEL}/{WEIGHTS} in service is neither"):
        deployment.preflight(new)


def test_a_repository_behind_a_symbolic_link_is_changed_where_it_lies(
    repository: Path, new: Release, tmp_path: Path
) -> None:
    (tmp_path / "current").symlink_to("models")
    target(tmp_path / "current").apply(new, label="p1")
    assert (tmp_path / "current").is_symlink()
    target(repository).verify(new)


@pytest.mark.parametrize("where", ["", "bystander"], ids=["itself", "a model"])
def test_a_repository_that_is_a_mount_or_holds_one_is_refused(
    repository: Path, new: Release, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    mount = type("Mount", (), {"mountpoint": str(repository / where)})()
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: [mount])  # noqa: A006
    with pytest.raises(InputRefused, match="a mount of its own, or holds one"):
        target(repository).preflight(new)
    assert not repository.with_name("models.autotune").exists()


def test_a_file_system_without_the_exchange_is_refused(
    repository: Path, new: Release, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sidecar, "exchange", lambda one, other: False)
    with pytest.raises(InputRefused, match="cannot exchange two directories"):
        target(repository).preflight(new)


def test_a_file_system_that_refuses_the_exchange_after_all_leaves_all_as_it_was(
    repository: Path, new: Release, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crossed(one: Path, other: Path) -> bool:
        raise OSError(18, "Invalid cross-device link")

    before = tree(repository)
    monkeypatch.setattr(sidecar, "exchange", crossed)
    with pytest.raises(ExportFailed, match="Invalid cross-device link"):
        target(repository).apply(new, label="p1")
    assert tree(repository) == before
    assert not list((repository.with_name("models.autotune") / "staged").glob("*"))


def test_a_folder_beside_it_on_another_file_system_is_refused(
    repository: Path, new: Release
) -> None:
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK) or memory.stat().st_dev == repository.stat().st_dev:
        pytest.skip("there is no second file system here")
    with TemporaryDirectory(dir=memory) as elsewhere:
        repository.with_name("models.autotune").symlink_to(elsewhere)
        with pytest.raises(InputRefused, match="on another file system than the repository"):
            target(repository).preflight(new)


def test_a_folder_beside_it_that_cannot_be_had_is_refused(repository: Path, new: Release) -> None:
    repository.with_name("models.autotune").write_text("somebody's")
    with (
        pytest.raises(InputRefused, match="beside the repository cannot be written"),
        target(repository).locked(),
    ):
        pass
    with pytest.raises(InputRefused, match="beside the repository cannot be written"):
        target(repository).preflight(new)


def test_what_cannot_be_read_in_service_is_refused(
    repository: Path, new: Release, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(*_: object, shallow: bool) -> bool:
        raise PermissionError(13, "Permission denied", "weights.bin")

    monkeypatch.setattr(merging.filecmp, "cmp", closed)
    with pytest.raises(InputRefused, match=r"cannot be read: Permission denied.*weights\.bin"):
        target(repository).preflight(new)


def test_a_disk_too_full_for_the_journal_leaves_all_as_it_was(
    repository: Path, new: Release, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, text: str) -> None:
        raise OSError(28, "No space left on device")

    before = tree(repository)
    kept = target(repository).apply(new, label="p1")
    after = tree(repository)
    monkeypatch.setattr(sidecar, "replace_synced", full)
    with pytest.raises(ExportFailed, match="Nothing was changed"):
        target(repository).restore(kept)
    assert tree(repository) == after
    monkeypatch.undo()
    target(repository).restore(kept)
    assert tree(repository) == before


@pytest.mark.parametrize("earlier", [False, True], ids=["as now", "by an earlier autotune"])
def test_a_journal_is_understood_after_a_restart_that_numbers_devices_anew(
    repository: Path, new: Release, monkeypatch: pytest.MonkeyPatch, earlier: bool
) -> None:
    class Killed(BaseException): ...

    def killed(*_: object) -> None:
        raise Killed

    settle = sidecar.Sidecar._settle
    monkeypatch.setattr(sidecar.Sidecar, "_settle", killed)
    with pytest.raises(Killed):
        target(repository).apply(new, label="p1")
    monkeypatch.setattr(sidecar.Sidecar, "_settle", settle)
    journal = repository.with_name("models.autotune") / "journal.json"
    turn = json.loads(journal.read_text())
    if earlier:
        turn |= {side: [99, turn[side]] for side in ("was", "becomes")}
        journal.write_text(json.dumps(turn))
    target(repository).recover()
    target(repository).verify(new)
    assert (repository.with_name("models.autotune") / "kept" / "p1" / MODEL).is_dir()


def test_a_full_disk_is_refused_beforehand(
    repository: Path, new: Release, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type("Usage", (), {"free": 10})()
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(InputRefused, match=r"takes about 1 MB.*0 MB free"):
        target(repository).preflight(new)


def test_a_disk_that_fills_up_meanwhile_leaves_all_as_it_was(
    repository: Path, new: Release, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(root: Path) -> None:
        raise OSError(28, "No space left on device")

    before = tree(repository)
    monkeypatch.setattr(module, "sync_tree", full)
    with pytest.raises(ExportFailed, match="No space left on device"):
        target(repository).apply(new, label="p1")
    assert tree(repository) == before


@pytest.mark.skipif(os.getuid() == 0, reason="permission bits do not stop root")
def test_a_repository_that_cannot_be_written_is_refused(repository: Path, new: Release) -> None:
    repository.chmod(0o555)
    with pytest.raises(InputRefused, match="cannot be written"):
        target(repository).preflight(new)


def test_the_directory_of_a_model_is_no_repository(repository: Path, new: Release) -> None:
    with pytest.raises(InputRefused, match="a model's own directory"):
        target(repository / MODEL).preflight(new)


def test_what_promotions_have_replaced_is_no_repository(repository: Path, new: Release) -> None:
    kept = target(repository).apply(new, label="p1")
    with pytest.raises(InputRefused, match="holds what promotions have replaced"):
        target(Path(kept)).preflight(new)
    assert sorted(each.name for each in Path(kept).parent.iterdir()) == ["p1"]


def test_the_root_directory_is_refused() -> None:
    with pytest.raises(InputRefused, match="beside the root directory"):
        target(Path("/"))


def test_a_repository_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputRefused, match="does not exist"):
        target(tmp_path / "nowhere")


def test_two_promotions_at_once_are_one_and_a_refusal(repository: Path) -> None:
    with (
        target(repository).locked(),
        pytest.raises(AutotuneError, match="another promotion is under way"),
        target(repository).locked(),
    ):
        pass


def test_what_somebody_changes_while_it_is_prepared_is_not_overwritten(
    repository: Path, new: Release, monkeypatch: pytest.MonkeyPatch
) -> None:
    def meanwhile(root: Path) -> None:
        (repository / MODEL / "config.pbtxt").write_text(promoting.config(MODEL, 3))
        durable.sync_tree(root)

    monkeypatch.setattr(module, "sync_tree", meanwhile)
    with pytest.raises(ExportFailed, match="somebody else changed the repository"):
        target(repository).apply(new, label="p1")
    assert (repository / MODEL / "config.pbtxt").read_text() == promoting.config(MODEL, 3)


def test_what_somebody_changes_just_after_it_was_looked_at_is_not_overwritten(
    repository: Path, new: Release, monkeypatch: pytest.MonkeyPatch
) -> None:
    def meanwhile(path: Path) -> str:
        (repository / MODEL / "config.pbtxt").write_text(promoting.config(MODEL, 3))
        return hashlib.sha256(path.read_bytes()).hexdigest()

    (new.repository / MODEL / WEIGHTS).write_text("w2")
    files = {MODEL: {WEIGHTS: hashlib.sha256(b"w1").hexdigest()}}
    (known,) = found(promoting.config(MODEL))
    monkeypatch.setattr(module, "sha256_of", meanwhile)
    with pytest.raises(ExportFailed, match="somebody else changed the repository"):
        target(repository, [replace(known, files=files)]).apply(new, label="p1")
    assert (repository / MODEL / "config.pbtxt").read_text() == promoting.config(MODEL, 3)


def test_what_was_changed_in_service_does_not_verify(repository: Path, new: Release) -> None:
    target(repository).apply(new, label="p1")
    (repository / MODEL / "config.pbtxt").write_text(promoting.config(MODEL, 3))
    with pytest.raises(ExportFailed, match=r"(?s)not what was promoted.*-max_batch_size: 3"):
        target(repository).verify(new)
