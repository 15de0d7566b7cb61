"""From the variants that a space names to those that may be measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from autotune.adapters.triton.artefacts import variant_in_service
from autotune.adapters.triton.repository import ServedModel, from_onnx
from autotune.adapters.variants.builder import VariantBuilder
from autotune.adapters.variants.request import BuildRequest
from autotune.adapters.variants.running import Runner
from autotune.bootstrap.variants import (
    Place,
    Prepared,
    Wanted,
    prepare_variants,
    records_of,
    restricted,
    variants_asked,
)
from autotune.bootstrap.variants_before import Before
from autotune.bootstrap.variants_exported import prepare_one
from autotune.core.errors import InputRefused
from autotune.core.study import Launch, Study
from autotune.core.variants import Variant, VariantRecord
from autotune.studyfile import study_from_options
from search_spaces.candidate import Candidate
from search_spaces.space import parse_space
from tests import onnx_models

OWN, HALF, BYTE = (f"onnxruntime-{p}" for p in ("fp32", "fp16", "int8"))


@dataclass
class Builder:
    """Builds copies of the source with weights scaled, and gates them as it is asked to."""

    folder: Path
    scales: dict[str, float] = field(default_factory=dict)
    asked: list[BuildRequest] = field(default_factory=list)

    def build(self, request: BuildRequest) -> VariantRecord:
        self.asked.append(request)
        name = str(request.variant)
        file = self.folder / f"{name}.onnx"
        self.folder.mkdir(exist_ok=True)
        model = onnx.load(request.source)
        (weights,) = (t for t in model.graph.initializer if t.name == "w")
        values = numpy_helper.to_array(weights) * self.scales.get(name, 1.0)
        weights.CopyFrom(numpy_helper.from_array(values.astype("float32"), "w"))
        onnx.save(model, file)
        run = Runner(file)
        drop = request.drop([run(sample) for sample in request.samples])
        above = request.limit is not None and drop > request.limit
        return VariantRecord(
            variant=request.variant,
            step=request.step,
            digest=name,
            file=str(file),
            accuracy_drop=drop,
            refused=f"accuracy drop {drop:.1%}" if above else "",
        )


@pytest.fixture
def model(tmp_path: Path) -> ServedModel:
    return from_onnx(onnx_models.linear(tmp_path / "m.onnx"), "m", tmp_path / "models")


@pytest.fixture
def asked(tmp_path: Path) -> Callable[..., Study]:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "data.npz", x=rng.normal(size=(8, 4)).astype("float32"))

    def make(variants: Sequence[str] = (OWN, HALF), **sections: Any) -> Study:
        return study_from_options(
            {
                "study": "s",
                "model": {"onnx": "m.onnx", "name": "m"},
                "workload": {"target_qps": 10},
                "sla": {"p95_ms": 80, "accuracy_drop": 0.1},
                "space": {"variant": list(variants), "max_batch_size": [1, 8]},
                "accuracy": {"metric": "relative_error", "data": str(tmp_path / "data.npz")},
                **sections,
            }
        )

    return make


@pytest.fixture
def prepared(tmp_path: Path, model: ServedModel) -> Callable[..., Prepared]:
    def make(
        study: Study,
        builder: Builder,
        said: list[str] | None = None,
        before: Before | None = None,
    ) -> Prepared:
        say = (said if said is not None else []).append
        at = Place(cache_dir=tmp_path, work=tmp_path, models=tmp_path / "run", say=say)
        return prepare_variants(study, model, at, builder=builder, before=before)

    return make


def values(study: Study, target: str = "variant") -> list[Any]:
    return list(study.space.parameter(target).domain.grid())


def test_the_model_s_own_variant_is_not_built_and_the_others_are(
    tmp_path: Path, model: ServedModel, asked: Any, prepared: Any
) -> None:
    builder = Builder(tmp_path / "built")
    found = prepared(asked(), builder)
    assert [str(request.variant) for request in builder.asked] == [HALF]
    assert builder.asked[0].source == model.onnx
    assert builder.asked[0].batch_sizes == (1, 8)
    assert values(found.study) == [OWN, HALF]
    assert [(str(r.variant), r.accuracy_drop) for r in found.variants] == [(OWN, 0.0), (HALF, 0.0)]
    assert set(found.model.artefacts) == {OWN, HALF}
    assert variant_in_service(found.model) == OWN
    assert found.model.digest == model.digest


def test_a_variant_that_fails_the_gate_leaves_the_space_and_is_told_why(
    tmp_path: Path, asked: Any, prepared: Any
) -> None:
    said: list[str] = []
    builder = Builder(tmp_path / "built", {HALF: 0.5})
    found = prepared(asked(), builder, said)
    assert values(found.study) == [OWN]
    assert found.study.space.contains(Candidate({"variant": OWN, "max_batch_size": 8}))
    refused = found.variants[1]
    assert refused.refused.startswith("accuracy drop")
    assert set(found.model.artefacts) == {OWN}
    assert any(refused.refused in each for each in said)


def test_what_cannot_run_here_is_left_out_unbuilt(
    tmp_path: Path, asked: Any, prepared: Any
) -> None:
    builder = Builder(tmp_path / "built")
    found = prepared(asked([OWN, HALF, "onnxruntime-bf16", "onnxruntime-cuda-fp16"]), builder)
    assert values(found.study) == [OWN, HALF]
    assert [str(request.variant) for request in builder.asked] == [HALF]
    reasons = {str(record.variant): record.refused for record in found.variants if record.refused}
    assert set(reasons) == {"onnxruntime-bf16", "onnxruntime-cuda-fp16"}
    assert "no bf16 arithmetic" in reasons["onnxruntime-bf16"]


def test_where_none_is_left_each_reason_is_told(tmp_path: Path, asked: Any, prepared: Any) -> None:
    study = asked([HALF, "onnxruntime-bf16"])
    with pytest.raises(InputRefused, match="none of the values of variant") as refused:
        prepared(study, Builder(tmp_path / "built", {HALF: 0.5}))
    assert f"{HALF}: accuracy drop" in str(refused.value)
    assert "onnxruntime-bf16: ONNX Runtime has no bf16" in str(refused.value)


def test_without_a_limit_a_drop_is_measured_and_refuses_nothing(
    tmp_path: Path, asked: Any, prepared: Any
) -> None:
    study = asked(sla={"p95_ms": 80})
    found = prepared(study, Builder(tmp_path / "built", {HALF: 0.5}))
    assert values(found.study) == [OWN, HALF]
    assert found.variants[1].accuracy_drop is not None
    assert found.variants[1].accuracy_drop > 0.1
    assert found.gate is not None


def test_calibration_data_reach_the_builder_of_int8_alone(
    tmp_path: Path, asked: Any, prepared: Any
) -> None:
    builder = Builder(tmp_path / "built")
    data = {"data": str(tmp_path / "data.npz"), "samples": 3}
    prepared(asked([OWN, HALF, BYTE], calibration=data), builder)
    given = {str(request.variant): request for request in builder.asked}
    assert len(given[BYTE].calibration_samples) == 3
    assert given[BYTE].calibration is not None
    assert not given[HALF].calibration_samples
    assert given[HALF].calibration is None


def test_a_name_that_is_no_variant_is_refused_with_near_ones(asked: Any, prepared: Any) -> None:
    study = replace(asked(), space=parse_space({"variant": ["onnxruntime-fp61"]}, "s"))
    with pytest.raises(InputRefused) as refused:
        prepared(study, Builder(Path("unused")))
    assert "onnxruntime-fp16" in refused.value.next_step


def test_a_remote_server_takes_no_variants(asked: Any, prepared: Any) -> None:
    study = asked()
    remote = replace(study, server=replace(study.server, launch=Launch.REMOTE))
    with pytest.raises(InputRefused, match="remote server's own repository"):
        prepared(remote, Builder(Path("unused")))


def test_a_study_without_variants_is_as_it_was(tmp_path: Path, prepared: Any) -> None:
    study = study_from_options(
        {
            "study": "s",
            "model": {"onnx": "m.onnx", "name": "m"},
            "workload": {"target_qps": 10},
            "sla": {"p95_ms": 80},
            "space": {"max_batch_size": [1, 8]},
        }
    )
    found = prepared(study, Builder(tmp_path))
    assert (found.study, found.variants, found.gate) == (study, (), None)
    assert not (tmp_path / "run").exists()


def test_a_condition_on_a_variant_that_left_never_holds() -> None:
    space = parse_space(
        {
            "variant": [OWN, BYTE],
            "max_batch_size": {"values": [1, 8], "when": {"variant": BYTE}},
        },
        "s",
    )
    refused = VariantRecord(variant=Variant.parse(BYTE), refused="too inaccurate")
    left = restricted(space, [refused])
    assert list(left.candidates()) == [Candidate({"variant": OWN})]


# ------------------------------------------------------------------------- for a stored study
def stored(**changes: Any) -> VariantRecord:
    return VariantRecord(**{"variant": Variant.parse(HALF), "digest": "0" * 64, **changes})


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(
        cache_dir=tmp_path / "cache", work=tmp_path, models=tmp_path / "run", say=lambda _: None
    )


def test_the_model_s_own_variant_can_be_exported_though_it_is_in_no_space(
    model: ServedModel, asked: Any, place: Place
) -> None:
    study, own = asked([HALF]), Candidate({"variant": OWN, "max_batch_size": 1})
    found = prepare_one(study, model, place, candidate=own, before=Before(variants=[stored()]))
    assert found.artefacts[OWN].own
    assert HALF in found.artefacts, "the evidence shows the other trials' configurations too"


def test_a_variant_is_built_again_for_an_export_and_refused_if_it_is_another(
    model: ServedModel, asked: Any, place: Place
) -> None:
    study, half = asked([OWN, HALF]), Candidate({"variant": HALF, "max_batch_size": 1})
    again = prepare_one(
        study, model, place, candidate=half, before=Before(variants=[stored(digest="")])
    )
    artefact = again.artefacts[HALF]
    assert artefact.path.is_file()
    assert artefact.path.is_relative_to(place.cache_dir)
    with pytest.raises(InputRefused, match="would not be what the study measured") as refused:
        prepare_one(study, model, place, candidate=half, before=Before(variants=[stored()]))
    assert "not 000000000000" in str(refused.value)


def test_a_study_goes_on_only_with_the_variants_that_it_measured(
    tmp_path: Path, asked: Any, prepared: Any
) -> None:
    first = prepared(asked(), Builder(tmp_path / "built"))
    again = Before(variants=first.variants)
    assert prepared(asked(), Builder(tmp_path / "built"), before=again).variants == first.variants
    other = Before(variants=[replace(each, digest="0" * 64) for each in first.variants])
    with pytest.raises(InputRefused, match="would not be what the study measured"):
        prepared(asked(), Builder(tmp_path / "built"), before=other)
    with pytest.raises(InputRefused, match="can no longer be built"):
        prepared(asked(), Builder(tmp_path / "built", {HALF: 0.5}), before=again)


def test_what_was_refused_before_may_be_refused_again(
    tmp_path: Path, asked: Any, prepared: Any
) -> None:
    first = prepared(asked(), Builder(tmp_path / "built", {HALF: 0.5}))
    again = Before(variants=first.variants)
    found = prepared(asked(), Builder(tmp_path / "built", {HALF: 0.5}), before=again)
    assert values(found.study) == [OWN]


def test_of_a_stored_study_only_the_variants_that_are_served_again_are_built(
    tmp_path: Path, asked: Any, prepared: Any
) -> None:
    builder = Builder(tmp_path / "built")
    data = {"data": str(tmp_path / "data.npz")}
    pair = [Candidate({"variant": v, "max_batch_size": 8}) for v in (OWN, HALF)]
    found = prepared(asked([OWN, HALF, BYTE], calibration=data), builder, before=Before(only=pair))
    assert [str(request.variant) for request in builder.asked] == [HALF]
    assert set(found.model.artefacts) == {OWN, HALF}
    found = prepared(asked([HALF]), Builder(tmp_path / "built"), before=Before(only=pair[:1]))
    assert set(found.model.artefacts) == {OWN}
    assert found.gate is not None


def test_a_variant_that_is_the_source_file_itself_is_taken_from_the_model(
    model: ServedModel, asked: Any, place: Place, tmp_path: Path
) -> None:
    """The cache vouches for its own files alone: what stands where the source stood may be another
    file by now."""
    moved = tmp_path / "moved.onnx"
    assert model.onnx is not None
    moved.write_bytes(model.onnx.read_bytes())
    source = VariantBuilder(place.cache_dir).build(
        BuildRequest(
            source=moved,
            variant=Variant.parse("onnxruntime-cuda-fp32"),
            samples=[{"x": np.zeros(4, dtype="float32")}],
            drop=lambda _: 0.0,
            limit=None,
        )
    )
    assert source.file == str(moved)
    moved.write_text("another model")
    study, chosen = asked([OWN, str(source.variant)]), Candidate({"variant": str(source.variant)})
    found = prepare_one(study, model, place, candidate=chosen, before=Before(variants=[source]))
    assert found.artefacts[str(source.variant)].path == model.onnx


def test_the_files_outputs_that_are_not_declared_are_not_judged(
    tmp_path: Path, model: ServedModel, asked: Any
) -> None:
    """The file's second output changes altogether; nobody is given it."""
    assert model.onnx is not None
    graph = onnx.load(model.onnx)
    graph.graph.output.append(onnx.helper.make_tensor_value_info("h", 1, ["batch", 3]))
    onnx.save(graph, model.onnx)
    at = Place(cache_dir=tmp_path, work=tmp_path, models=tmp_path / "run", say=lambda _: None)
    builder = Builder(tmp_path / "built", {HALF: 0.99})
    found = prepare_variants(asked(accuracy={"metric": "top1"}), model, at, builder=builder)
    assert [record.accuracy_drop for record in found.variants] == [0.0, 0.0]


def test_accuracy_without_variants_asks_nothing(asked: Any, prepared: Any, tmp_path: Path) -> None:
    study = replace(asked(), space=parse_space({"instances": [1, 2]}, "s"))
    assert prepared(study, Builder(tmp_path)).gate is None


# --------------------------------------------------------------- refused before anything is built
@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"calibration": {"data": "wide.npz"}}, "input x takes the shape"),
        ({"calibration": {"data": "empty/"}}, "holds no"),
        ({"accuracy": {"metric": "cosine", "output": "nothing"}}, "names no output"),
        ({"accuracy": {"metric": "score.py:score"}}, "gives no number"),
    ],
)
def test_unusable_data_and_metrics_are_refused_before_anything_is_built(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    asked: Any,
    prepared: Any,
    sections: dict[str, Any],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("wide.npz", x=np.zeros((8, 5), dtype="float32"))
    Path("empty").mkdir()
    Path("score.py").write_text("def score(outputs, expected): return '0.9'\n")
    study = asked([HALF, BYTE], **{"calibration": {"data": "data.npz"}, **sections})
    builder = Builder(tmp_path / "built")
    with pytest.raises(InputRefused, match=words):
        prepared(study, builder)
    assert not builder.asked


def test_a_step_of_which_nothing_can_be_built_is_refused_before_another_s_are(
    asked: Any,
) -> None:
    class OneImpossible:
        study = replace(asked(), space=parse_space({"a.variant": [HALF], "b.variant": [HALF]}, "s"))

        def unbuilt(self, wanted: Wanted) -> VariantRecord | None:
            if wanted.step == "a":
                return None
            return VariantRecord(variant=wanted.variant, step="b", refused="Python code of its own")

        def refuse_unusable(self, _wanted: Any) -> None: ...

        def built(self, wanted: Wanted) -> VariantRecord:
            pytest.fail(f"{wanted} was built first")

    shop: Any = OneImpossible()
    with pytest.raises(InputRefused, match=r"values of b\.variant") as refused:
        records_of(shop, list(variants_asked(shop.study.space)), Before())
    assert "Python code of its own" in str(refused.value)
