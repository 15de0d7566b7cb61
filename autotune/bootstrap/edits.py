"""What is in service where a champion belongs, held against what was promoted, or found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

from autotune.adapters.deploy.merging import text_diff
from autotune.adapters.deploy.served import Known, differences
from autotune.adapters.hashes import sha256_of
from autotune.adapters.triton.config import ModelConfig, present, render, with_candidate
from autotune.bootstrap.models import gpus_of
from autotune.bootstrap.releases import (
    BRINGS,
    Contents,
    Place,
    found_by,
    in_service,
    known_of,
    place,
)
from autotune.core.errors import AutotuneError
from autotune.core.promotions import Edited, Promotion, Target
from autotune.core.study import Launch, Study
from autotune.core.wording import listed
from search_spaces.candidate import SERVER_PREFIX, VARIANT, Candidate, Value, split_target
from storage.service import ServiceStore

_TOLD = 4
"""So many differences are named in a line."""


def edited_since(store: ServiceStore, champion: Promotion, study: Study) -> Edited | None:
    """What somebody changed in service since the promotion, in the words of the study's space where
    it can be said in them; None where nothing was. AutotuneError or OSError where the target cannot
    be looked at. Of a model's files those are read that the promotion brought."""
    candidate = Candidate.from_json(champion.candidate)
    wanted = _promoted(store, champion)
    found = _edited(champion.target, wanted, candidate, study, whole=True)
    return None if found is None else replace(found, promotion=champion.id)


def other_than_found(target: Target, study: Study, found: Candidate) -> Edited | None:
    """As `edited_since`, where nothing was promoted yet: what is in service instead of what the
    study finds, by the configurations alone, of the models that the target has."""
    remote = study.server.launch is Launch.REMOTE
    wanted = known_of(Contents(configs=found_by(study).configs), completed=remote)
    other = _edited(target, wanted, found, study, whole=False)
    return None if other is None else replace(other, instead="what the study finds")


def other_than_begun(target: Target, study: Study, begun: Contents) -> Edited | None:
    """As `edited_since`, where nothing was promoted to a target that the study finds its model in:
    what is in service instead of what `found_by` found as the study began, of the models that the
    target has."""
    wanted = known_of(begun, completed=study.server.launch is Launch.REMOTE)
    other = _edited(target, wanted, Candidate({}), study, whole=False)
    if other is None:
        return None
    return replace(other, instead="what was there as the night began", candidate=None)


def other_than_before(study: Study, before: Candidate, found: Candidate) -> Edited | None:
    """Of a model that is tuned where it is served, by what an earlier study found there."""
    place = study.server.grpc if study.server.launch is Launch.REMOTE else study.model.repository
    names = sorted({*before, *found})
    changed = [name for name in names if before.get(name) != found.get(name)]
    if place is None or not changed:
        return None
    told = [f"{name} is {found.get(name)}, not {before.get(name)}" for name in changed]
    return Edited(
        promotion=None,
        target=str(place),
        words=_line(told),
        diff="".join(f"# {each}\n" for each in told),
        instead="what the study before found there",
        candidate=found,
    )


def _edited(
    target: Target, wanted: Known, own: Candidate, study: Study, *, whole: bool
) -> Edited | None:
    """``whole``: each model has to be there; else what is not was never put there."""
    if not wanted.configs:
        return None
    with ExitStack() as stack:
        seen = _seen(target, wanted, stack, whole=whole)
    if not seen.differences:
        return None
    return Edited(
        promotion=None,
        target=str(target),
        words=_line(seen.differences),
        diff=seen.diff,
        lasting=target.repository is not None,
        candidate=_in_words(own, study, wanted, seen),
    )


# --------------------------------------------------------------------------- what is, and was to be
def _promoted(store: ServiceStore, champion: Promotion) -> Known:
    """The champion's models as the latest promotions left them: of a step that two pipelines share,
    that may be the other's."""
    brings = Contents.from_json(champion.detail.get(BRINGS))
    names = set(brings.configs)
    configs, files = dict(brings.configs), dict(brings.files)
    for each in reversed(in_service(store.promotions, champion.target)):
        found = Contents.from_json(each.detail.get(BRINGS))
        configs |= {name: found.configs[name] for name in names & set(found.configs)}
        files |= {name: found.files[name] for name in names & set(found.files)}
    return known_of(Contents(configs=configs, files=files))


@dataclass(slots=True, kw_only=True)
class _Seen:
    """What is there of the models: their configurations ``now``, the ``differences`` from what was
    promoted in words, the unified ``diff``; ``files``: whether other files are there.
    ``completed``: the configurations are as a server has completed them."""

    completed: bool
    now: dict[str, ModelConfig | None] = field(default_factory=dict)
    differences: list[str] = field(default_factory=list)
    diff: str = ""
    files: bool = False


def _seen(target: Target, wanted: Known, stack: ExitStack, *, whole: bool) -> _Seen:
    """A directory as its files say, and then what its server has loaded of that; a server alone as
    it has it loaded."""
    at = place(target, stack, known=None)
    if target.repository is None:
        return _served(at, wanted, whole=whole)
    seen = _filed(at, target.repository, wanted, whole=whole)
    if target.grpc is not None and not seen.differences:
        server = place(replace(target, repository=None), stack, known=None)
        return _served(server, wanted, whole=whole)
    return seen


def _filed(at: Place, repository: Path, wanted: Known, *, whole: bool) -> _Seen:
    seen = _Seen(completed=False)
    for name, own in wanted.configs.items():
        here = at.present(name)
        if not whole and here in (None, ModelConfig(name=name)):
            continue
        seen.now[name] = here
        if here is None:
            seen.differences.append(f"{name} is not there any more")
        elif not wanted.is_file(name, here):
            told = differences(own, here) or [f"other fields of {name} are set"]
            seen.differences += [f"{name}: {each}" for each in told]
            seen.diff += "".join(text_diff(name, render(own), render(here), _CALLED))
        for line in _other_files(repository / name, wanted.files.get(name, {})):
            seen.files = True
            seen.differences.append(f"{name}/{line}")
    return seen


_CALLED = ("as it was", "in service")


def _other_files(folder: Path, brought: Mapping[str, str]) -> Iterator[str]:
    for path, digest in brought.items():
        file = folder / path
        if file.is_dir():
            continue
        if not file.is_file():
            yield f"{path} is gone"
        elif sha256_of(file) != digest:
            yield f"{path} has other contents"


def _served(at: Place, wanted: Known, *, whole: bool) -> _Seen:
    seen = _Seen(completed=True)
    for name, own in wanted.configs.items():
        here = at.present(name)
        if not whole and here is None:
            continue
        seen.now[name] = here
        told = ["it is not loaded"] if here is None else differences(own, here)
        seen.differences += [f"{name}: {each}" for each in told]
    seen.diff = "".join(f"# {each}\n" for each in seen.differences)
    return seen


def _line(found: list[str]) -> str:
    more = len(found) - _TOLD
    return listed([*found[:_TOLD], f"{more} more differences"] if more > 1 else found)


# ------------------------------------------------------------------------------- in a space's words
def _in_words(candidate: Candidate, study: Study, wanted: Known, seen: _Seen) -> Candidate | None:
    """The candidate with what was changed of it; None where something else was."""
    if seen.files:
        return None
    values: dict[str, Value] = {}
    for name, here in seen.now.items():
        own, fields = wanted.configs[name], _tuned(study, name)
        if here is None:
            return None
        was, now = (present(each, fields, gpus=gpus_of(study.server)) for each in (own, here))
        completed = (wanted.completed, seen.completed)
        if not _alike((own, was), (here, now), completed):
            return None
        values |= {fields[each]: now[each] for each in fields if was.get(each) != now[each]}
    return candidate.replacing(**values)


def _tuned(study: Study, model: str) -> dict[str, str]:
    """The fields of one model that the space tunes, with what the space calls them; a variant is
    other files, and no field."""
    named = ((*split_target(target), target) for target in study.space.targets)
    return {
        name: target
        for step, name, target in named
        if (step or study.model.name) == model
        and name != VARIANT
        and not name.startswith(SERVER_PREFIX)
    }


_Side: TypeAlias = tuple[ModelConfig, Candidate]
"""A configuration, and what it has of what is tuned."""


def _alike(own: _Side, here: _Side, completed: tuple[bool, bool]) -> bool:
    """Whether two are the same but for what is tuned: under the one's values, or under the other's
    (to tune a model may bring a batcher, and to tune it back leaves it)."""
    return _same_under(own[1], own[0], here[0], completed) or _same_under(
        here[1], own[0], here[0], completed
    )


def _same_under(
    tuned: Candidate, own: ModelConfig, here: ModelConfig, completed: tuple[bool, bool]
) -> bool:
    try:
        one, other = (with_candidate(each, tuned) for each in (own, here))
    except AutotuneError:
        return False
    if completed[1]:
        return not differences(one, other)
    return not differences(other, one) if completed[0] else one == other
