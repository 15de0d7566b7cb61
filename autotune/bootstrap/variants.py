"""The variants that a study asks for: built, judged, and put where its server finds them.

What cannot run here, or answers too much worse than the source, leaves the space before anything
is measured: it costs no load time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Protocol

from autotune.adapters.hashes import sha256_of
from autotune.adapters.triton import devices
from autotune.adapters.triton.artefacts import (
    Artefact,
    engines_of_runner,
    variant_in_service,
)
from autotune.adapters.triton.evaluation import Alone, Evaluated, Served, ServedGate, interface_of
from autotune.adapters.triton.onnx_graph import external_files
from autotune.adapters.triton.placing import place, refuse_several_versions
from autotune.adapters.triton.repository import ServedModel, loaded_versions
from autotune.adapters.triton.servers import Servers
from autotune.adapters.variants.request import BuildRequest, Outputs
from autotune.bootstrap.accuracy import Asked, asked
from autotune.bootstrap.models import gpus_of, hardware_of
from autotune.bootstrap.variants_before import Before
from autotune.core.accuracy import Answer
from autotune.core.capability import NO_TORCH_TF32, PYTORCH_TF32, Hardware, impossible
from autotune.core.errors import InputRefused
from autotune.core.model_interface import Sample
from autotune.core.study import Launch, ServerSpec, Study
from autotune.core.variants import AS_GIVEN, Engine, Variant, VariantRecord
from autotune.ports import AccuracyGate
from autotune.studyfile.variants import CALIBRATED
from autotune.tuner.crashes import despite_a_crash
from loadgen.inputs import build_samples
from search_spaces.candidate import MAX_BATCH_SIZE, VARIANT, Candidate, split_target, target_of
from search_spaces.domain import Values
from search_spaces.parameter import Parameter
from search_spaces.space import Space

_TORCH_FILES = ("model.pt", "model.pt2")
_PROFILED = frozenset({Engine.TENSORRT, Engine.ONNXRUNTIME_TENSORRT})


class Builder(Protocol):
    """Builds variants, or takes them from its cache."""

    def build(self, request: BuildRequest) -> VariantRecord: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A study whose space holds only the variants that may be measured, its model with them, what
    came of each that was asked for, and how what is served is judged (None: nobody asks)."""

    study: Study
    model: ServedModel
    variants: tuple[VariantRecord, ...] = ()
    gate: AccuracyGate | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where variants are built: ``work`` is scratch, ``models`` holds what the server is given,
    ``server_dir`` an embedded server that is there unpacked."""

    cache_dir: Path
    work: Path
    models: Path
    say: Callable[[str], None]
    server_dir: Path | None = None


def prepare_variants(
    study: Study,
    model: ServedModel,
    at: Place,
    *,
    builder: Builder | None = None,
    before: Before | None = None,
) -> Prepared:
    """Build what the space asks for.

    InputRefused where a parameter is left without any variant, each with its reason; for a remote
    server; where a variant that was measured ``before`` cannot be had any more as it was: stored
    measurements and new ones would be of two artefacts.
    """
    before = before or Before()
    asked_for = list(variants_asked(study.space))
    if not asked_for:
        return Prepared(study=study, model=model)
    _refuse_unbuildable(study, model, asked_for)
    wanted = [each for each in asked_for if before.only is None or each.is_of(before.only)]
    with ExitStack() as stack:
        made = builder or builder_at(at, study.server)
        workshop = Workshop(study=study, model=model, at=at, stack=stack, builder=made)
        records = records_of(workshop, wanted, before)
        space = restricted(study.space, records)
        return Prepared(
            study=replace(study, space=space),
            model=place(
                model,
                artefacts_of(study, model, {each.step for each in asked_for}, records),
                at.models / "variants",
            ),
            variants=records,
            gate=workshop.gate(),
        )


def records_of(
    workshop: Workshop, wanted: Sequence[Wanted], before: Before
) -> tuple[VariantRecord, ...]:
    """What comes of each. What can be refused without building is refused before anything is."""
    found = {each: workshop.unbuilt(each) for each in wanted}
    known = [record for record in found.values() if record is not None]
    for record in known:
        before.refuse_another(record)
    restricted(workshop.study.space, known)
    left = [each for each, record in found.items() if record is None]
    if left:
        workshop.refuse_unusable(left)
    for each in left:
        record = workshop.built(each)
        before.refuse_another(record)
        found[each] = record
    return tuple(record for record in found.values() if record is not None)


def builder_at(at: Place, server: ServerSpec) -> Builder:
    """Builds on the GPUs that the server may use. The recipes' tools take seconds to import, and
    most commands build nothing."""
    from autotune.adapters.variants.builder import VariantBuilder  # noqa: PLC0415
    from autotune.adapters.variants.tensorrt import TensorRTBuilder  # noqa: PLC0415
    from autotune.adapters.variants.torchscript import TorchBuilder  # noqa: PLC0415

    here, variables = hardware_of(server), devices.variables(server.devices)
    timings = at.cache_dir / "tensorrt"
    return VariantBuilder(
        at.cache_dir,
        at.say,
        engines={
            Engine.TENSORRT: TensorRTBuilder(timings, here=here, variables=variables),
            Engine.PYTORCH: TorchBuilder(here=here, variables=variables),
        },
    )


# ------------------------------------------------------------------------------ what is asked for
@dataclass(frozen=True, slots=True)
class Wanted:
    step: str
    variant: Variant

    @property
    def target(self) -> str:
        return target_of(self.step, VARIANT)

    def is_of(self, candidates: Sequence[Candidate]) -> bool:
        """Whether one of them serves it."""
        return any(each.get(self.target) == str(self.variant) for each in candidates)

    def __str__(self) -> str:
        return f"{self.step}: {self.variant}" if self.step else str(self.variant)


def variants_asked(space: Space) -> Iterator[Wanted]:
    """Every variant that a space names, in its order. InputRefused, with near names, for one that
    is none."""
    for parameter in _variant_parameters(space):
        for value in parameter.domain.grid():
            yield Wanted(split_target(parameter.target)[0], Variant.parse(str(value)))


def _variant_parameters(space: Space) -> list[Parameter]:
    return [p for p in space.parameters if split_target(p.target)[1] == VARIANT]


def _refuse_unbuildable(study: Study, model: ServedModel, wanted: Sequence[Wanted]) -> None:
    """What is wrong with the question itself, before anything is built."""
    if study.server.launch is Launch.REMOTE:
        raise InputRefused(
            "variants cannot be put into a remote server's own repository",
            value=str(wanted[0]),
            next_step="tune them on a server that autotune starts: launch embedded, binary, docker",
        )
    for step in dict.fromkeys(each.step for each in wanted):
        refuse_several_versions(part_of(model, step))


def restricted(space: Space, records: Sequence[VariantRecord]) -> Space:
    """The space without the variants that were refused. InputRefused where none is left."""
    refused = {(each.target, str(each.variant)): each.refused for each in records if each.refused}
    kept = []
    for parameter in space.parameters:
        if split_target(parameter.target)[1] != VARIANT:
            kept.append(parameter)
            continue
        values = [v for v in parameter.domain.grid() if (parameter.target, str(v)) not in refused]
        if values:
            kept.append(replace(parameter, domain=Values(values=tuple(values))))
        else:
            reasons = [
                f"{name}: {why}"
                for (target, name), why in refused.items()
                if target == parameter.target
            ]
            raise InputRefused(
                f"none of the values of {parameter.target} can be measured here",
                next_step="\n  ".join(reasons),
            )
    return replace(space, parameters=tuple(kept))


# ------------------------------------------------------------------------------------- building
@dataclass(kw_only=True)
class Workshop:
    """Builds one study's variants; ``stack`` ends the server that it may need for that."""

    study: Study
    model: ServedModel
    at: Place
    stack: ExitStack
    builder: Builder

    def record(self, wanted: Wanted) -> VariantRecord:
        """What comes of a variant: built, refused, or there already."""
        return self.unbuilt(wanted) or self.built(wanted)

    def unbuilt(self, wanted: Wanted) -> VariantRecord | None:
        """What is known of a variant without building it: there already, or impossible here. None
        where it has to be built."""
        part = part_of(self.model, wanted.step)
        if _own_variant(self.study, part) == str(wanted.variant):
            return _own_record(wanted, part)
        reason = impossible(wanted.variant, self._hardware) or _unserved(part, wanted.variant)
        if not reason and source_of(part, wanted.variant) is None:
            reason = "there is no file that it could be built from"
        if not reason:
            return None
        self.at.say(f"variant {wanted} is left out: {reason}")
        return VariantRecord(variant=wanted.variant, step=wanted.step, refused=reason)

    def built(self, wanted: Wanted) -> VariantRecord:
        """Of one that `unbuilt` has nothing against."""
        part = part_of(self.model, wanted.step)
        source = source_of(part, wanted.variant)
        assert source is not None, "`unbuilt` asks for a source"
        record = self.builder.build(self._request(wanted, part, source))
        said = f"left out: {record.refused}" if record.refused else _built(record)
        self.at.say(f"variant {wanted}: {said}")
        return record

    def refuse_unusable(self, wanted: Sequence[Wanted]) -> None:
        """InputRefused for data or a metric that these could not be calibrated or judged by; what
        needs no server first."""
        accuracy = self._asked.accuracy
        if accuracy.function is None:
            accuracy.judged_outputs([output.name for output in self.model.config.output])
        if any(each.variant.precision in CALIBRATED for each in wanted):
            _ = self._calibration
        accuracy.drop(self._source_answers, self._source_answers)

    def gate(self) -> AccuracyGate:
        """With the source's answers, where they can be had here, or from a server that was
        started for them."""
        known = "_evaluated" in self.__dict__ or self.model.onnx is not None
        source = self._source_answers if known else None
        return ServedGate(self._asked.accuracy, self._asked.requests, source)

    def _request(self, wanted: Wanted, part: ServedModel, source: Path) -> BuildRequest:
        requests = self._asked.requests
        calibrated = wanted.variant.precision in CALIBRATED

        def drop(outputs: Sequence[Outputs]) -> float:
            answers = self._evaluated.answers_with(wanted.step, requests, outputs)
            return self._asked.accuracy.drop(answers, self._source_answers)

        return BuildRequest(
            source=source,
            variant=wanted.variant,
            step=wanted.step,
            samples=self._evaluated.inputs(wanted.step, requests),
            drop=drop,
            limit=self.study.sla.accuracy_drop,
            gate=self._asked.named + (self.model.digest if wanted.step else ""),
            calibration=self.study.calibration if calibrated else None,
            calibration_samples=self._calibration_of(wanted.step) if calibrated else (),
            batch_sizes=_batch_sizes(self.study.space, wanted.step, part),
            shapes=self._shapes(wanted),
            outputs=tuple(output.name for output in part.config.output),
        )

    @cached_property
    def _hardware(self) -> Hardware:
        """Of this machine, and of the server: the embedded one has the Python backend alone, whose
        ONNX Runtime is looked at where it could use a GPU."""
        here = hardware_of(self.study.server)
        if self.study.server.launch is not Launch.EMBEDDED:
            return here
        providers = None
        if here.compute_capability is not None:
            providers = self._servers.python(self.study.server).providers()
        return replace(here, backends=frozenset({"python"}), providers=providers)

    @cached_property
    def _servers(self) -> Servers:
        return Servers(
            cache_dir=self.at.cache_dir,
            work_dir=self.at.work / "variants",
            progress=self.at.say,
            server_dir=self.at.server_dir,
        )

    @cached_property
    def _asked(self) -> Asked:
        return asked(self.study, interface_of(self.model.config))

    @cached_property
    def _evaluated(self) -> Evaluated:
        """A model from an ONNX file is asked here; any other on a server that serves it as it was
        found."""
        if self.model.onnx is not None:
            return Alone(self.model)
        self.at.say("starting a server to see what goes into each step")
        server = self._servers.tuned(self.study.server, self.model)
        self.stack.callback(server.close)
        despite_a_crash(lambda: server.apply(Candidate({})), server, self.at.say)
        return Served(self.model, server.endpoint)

    @cached_property
    def _source_answers(self) -> Sequence[Answer]:
        return self._evaluated.answers(self._asked.requests)

    @cached_property
    def _calibration(self) -> Sequence[Sample]:
        spec = self.study.calibration
        if spec is None:  # the study file's rules refuse that, and the builder does
            return ()
        interface = interface_of(self.model.config)
        every = build_samples(interface, spec.data, seed=self.study.seed, key="calibration.data")
        return every[: spec.samples]

    def _calibration_of(self, step: str) -> Sequence[Sample]:
        return self._evaluated.inputs(step, self._calibration) if self._calibration else ()

    def _shapes(self, wanted: Wanted) -> Mapping[str, tuple[tuple[int, ...], ...]]:
        """Of the workload's inputs, which an engine is built for, and of the evaluation's."""
        if wanted.variant.engine not in _PROFILED:
            return {}
        samples = list(self._evaluated.inputs(wanted.step, self._asked.requests))
        samples += self._evaluated.inputs(wanted.step, self._workload)
        names = {name for sample in samples for name in sample}
        return {
            name: tuple(dict.fromkeys(sample[name].shape for sample in samples if name in sample))
            for name in sorted(names)
        }

    @cached_property
    def _workload(self) -> Sequence[Sample]:
        inputs = self.study.workload.inputs
        return build_samples(interface_of(self.model.config), inputs, seed=self.study.seed)


def _built(record: VariantRecord) -> str:
    drop = "" if record.accuracy_drop is None else f", accuracy drop {record.accuracy_drop:.2%}"
    where = "from the cache" if record.cached else f"built in {record.seconds:.1f} s"
    return where + drop


def _own_record(wanted: Wanted, part: ServedModel) -> VariantRecord:
    file = part.onnx
    assert file is not None, "what a model is, is told by its file"
    return VariantRecord(
        variant=wanted.variant,
        step=wanted.step,
        digest=sha256_of(file),
        size_mb=file.stat().st_size / 1e6,
        accuracy_drop=0.0,
        notes=(AS_GIVEN,),
    )


def _unserved(part: ServedModel, variant: Variant) -> str:
    """Why no file could change how a model is served; empty where one could."""
    if part.config.backend == "python" and not part.runner:
        return "the model is served by Python code of its own, not from a model file"
    if part.runner and variant.engine not in engines_of_runner(part):
        return f"autotune's runner serves it by {' and '.join(engines_of_runner(part))} alone"
    if not part.runner and variant == PYTORCH_TF32:
        return NO_TORCH_TF32
    return ""


def source_of(part: ServedModel, variant: Variant) -> Path | None:
    """The file that a variant is built from: TorchScript for PyTorch, else ONNX."""
    if variant.engine is not Engine.PYTORCH:
        return part.onnx
    version = loaded_versions(part)[-1]
    names = [part.config.default_model_filename, *_TORCH_FILES]
    return next((version / name for name in names if name and (version / name).is_file()), None)


def _batch_sizes(space: Space, step: str, part: ServedModel) -> tuple[int, ...]:
    target = target_of(step, MAX_BATCH_SIZE)
    swept = space.parameter(target).domain.grid() if target in space.targets else ()
    found = {value for value in swept if isinstance(value, int)}
    return tuple(sorted({*found, max(1, part.config.max_batch_size)}))


def part_of(model: ServedModel, step: str) -> ServedModel:
    return model.composing[step] if step else model


# -------------------------------------------------------------------------------------- placing
def artefacts_of(
    study: Study, model: ServedModel, steps: Collection[str], records: Sequence[VariantRecord]
) -> Mapping[str, Sequence[Artefact]]:
    """Of each of the steps, the model's own first: it is what the configuration found serves, asked
    for or not."""
    found = {step: _ownartefacts_of(study, part_of(model, step)) for step in steps}
    for record in records:
        mine = found[record.step]
        if record.usable and all(each.variant != record.variant for each in mine):
            file = Path(record.file)
            mine.append(Artefact(variant=record.variant, path=file, beside=_beside(file)))
    return found


def _own_variant(study: Study, part: ServedModel) -> str | None:
    server = study.server
    return variant_in_service(part, gpus=gpus_of(server), hardware=hardware_of(server))


def _ownartefacts_of(study: Study, part: ServedModel) -> list[Artefact]:
    own = _own_variant(study, part)
    if own is None or part.onnx is None:
        return []
    return [Artefact(variant=Variant.parse(own), path=part.onnx, own=True)]


def _beside(file: Path) -> tuple[Path, ...]:
    if file.suffix != ".onnx":
        return ()
    return tuple(file.parent / each for each in external_files(file))
