from __future__ import annotations

import ast
import shutil
from pathlib import Path, PurePosixPath

import onnx
import pytest
from onnx import TensorProto

from autotune.adapters.triton import onnx_graph
from autotune.adapters.triton.config import parse, read
from autotune.adapters.triton.onnx_graph import read_graph
from autotune.adapters.triton.repository import (
    RUNNER,
    ServedModel,
    adapt_for_embedded,
    from_onnx,
    from_repository,
)
from autotune.core.errors import InputRefused
from tests import onnx_models

IO = """
input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 3 ] } ]
"""


@pytest.fixture
def runner(tmp_path: Path) -> Path:
    file = tmp_path / "a_runner.py"
    file.write_text("# the runner\n")
    return file


def put_model(
    repository: Path, name: str, text: str | None, files: tuple[str, ...] = ("1/model.py",)
) -> Path:
    source = repository / name
    source.mkdir(parents=True)
    for file in files:
        (source / file).parent.mkdir(parents=True, exist_ok=True)
        (source / file).write_text(file)
    if text is not None:
        (source / "config.pbtxt").write_text(text)
    return source


def put_onnx(repository: Path, name: str, text: str | None) -> Path:
    source = put_model(repository, name, text, ())
    (source / "1").mkdir()
    onnx_models.linear(source / "1" / "model.onnx")
    return source


# -------------------------------------------------------------------------------- repositories
def test_a_model_is_served_from_where_it_is(tmp_path: Path):
    source = put_model(tmp_path / "models", "m", "backend: 'python'" + IO)
    model = from_repository(tmp_path / "models", "m", tmp_path / "work")
    assert (model.repository, model.source) == (tmp_path / "models", source)
    assert model.config.name == "m"
    assert (model.onnx, model.runner, model.native) == (None, False, None)
    assert not (tmp_path / "work").exists()


def test_the_digest_changes_with_files_and_configuration_alone(tmp_path: Path):
    source = put_model(tmp_path, "m", "backend: 'python'" + IO)
    digest = from_repository(tmp_path, "m", tmp_path).digest
    (source / "config.pbtxt").write_text("# a comment\nbackend: 'python'" + IO)
    (source / "1" / "__pycache__").mkdir()
    (source / "1" / "__pycache__" / "model.pyc").write_text("")
    assert from_repository(tmp_path, "m", tmp_path).digest == digest
    (source / "1" / "model.py").write_text("other")
    other = from_repository(tmp_path, "m", tmp_path).digest
    (source / "config.pbtxt").write_text("backend: 'python' max_batch_size: 1" + IO)
    assert len({digest, other, from_repository(tmp_path, "m", tmp_path).digest}) == 3


@pytest.mark.parametrize(
    ("text", "files", "words"),
    [
        ("name: 'other'" + IO, ("1/model.py",), "must be that of its directory"),
        ("max_batch_size: -1" + IO, ("1/model.py",), "negative"),
        ("backend: 'python'" + IO, ("model.py",), "no version directory"),
        ("backend: 'python'" + IO, ("0/model.py",), "no version directory"),
        ("backend: 'python'" + IO, ("1/other.py",), "should hold model.py"),
        ("backend: 'python' default_model_filename: 'my.py'" + IO, ("1/model.py",), "hold my.py"),
        ("backend: 'python' version_policy { specific { versions: 2 } }" + IO, ("1/model.py",),
         "none of the versions"),
        (IO, ("1/unknown.bin",), "which backend"),
        ("backend: 'python'", ("1/model.py",), "no input or no output"),
        ("backend: 'python' model_transaction_policy { decoupled: true }" + IO, ("1/model.py",),
         "decoupled"),
        ("backend: 'python' nonsense: 1", ("1/model.py",), r"config.pbtxt:1:19"),
    ],
)  # fmt: skip
def test_a_model_that_a_strict_server_would_not_load_is_refused(
    tmp_path: Path, text: str, files: tuple[str, ...], words: str
):
    put_model(tmp_path, "m", text, files)
    with pytest.raises(InputRefused, match=words):
        from_repository(tmp_path, "m", tmp_path / "work")


def test_a_missing_repository_is_refused(tmp_path: Path):
    with pytest.raises(InputRefused, match="does not exist"):
        from_repository(tmp_path / "none", "m", tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputRefused, match="is a file"):
        from_repository(tmp_path / "file", "m", tmp_path)


def test_a_missing_model_is_refused_with_near_names(tmp_path: Path):
    put_model(tmp_path, "minilm", "", ())
    with pytest.raises(InputRefused, match="Did you mean minilm"):
        from_repository(tmp_path, "minilmm", tmp_path)
    with pytest.raises(InputRefused, match="It holds: minilm"):
        from_repository(tmp_path, "zzz", tmp_path)


def test_a_path_to_the_model_itself_is_refused_with_what_to_give(tmp_path: Path):
    source = put_model(tmp_path, "m", "backend: 'python'" + IO)
    with pytest.raises(InputRefused, match="parent directory and the name m"):
        from_repository(source, "m", tmp_path)


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "..", "with space"])
def test_an_odd_name_is_refused(tmp_path: Path, name: str):
    with pytest.raises(InputRefused, match="directory's name"):
        from_repository(tmp_path, name, tmp_path)


def test_the_version_that_clients_get_is_the_one_compared_with(tmp_path: Path):
    source = put_onnx(tmp_path, "m", "platform: 'onnxruntime_onnx' max_batch_size: 8" + IO)
    shutil.copytree(source / "1", source / "10")
    shutil.copytree(source / "1", source / "9")
    assert from_repository(tmp_path, "m", tmp_path).onnx == source / "10" / "model.onnx"


def test_an_onnx_model_without_a_configuration_gets_what_triton_would_make_of_it(tmp_path: Path):
    source = put_onnx(tmp_path / "models", "m", None)
    model = from_repository(tmp_path / "models", "m", tmp_path / "work")
    expected = "name: 'm' backend: 'onnxruntime' max_batch_size: 4 dynamic_batching { }" + IO
    assert model.config == parse(expected, "expected")
    assert read(model.source / "config.pbtxt") == model.config
    assert model.onnx == model.source / "1" / "model.onnx"
    assert not (source / "config.pbtxt").exists()


def test_missing_inputs_and_outputs_are_read_from_the_onnx_file(tmp_path: Path):
    put_onnx(tmp_path, "m", "platform: 'onnxruntime_onnx' max_batch_size: 8")
    config = from_repository(tmp_path, "m", tmp_path).config
    expected = "name: 'm' platform: 'onnxruntime_onnx' max_batch_size: 8" + IO
    assert config == parse(expected, "expected")


# --------------------------------------------------------------------------------- ONNX files
def test_an_onnx_file_becomes_a_repository_with_a_newcomer_s_configuration(
    tmp_path: Path, runner: Path
):
    dims = {"input_dims": ("n", "w", 4), "output_dims": ("n", "w", 3)}
    file = onnx_models.linear(tmp_path / "any.onnx", **dims)  # type: ignore[arg-type]
    model = from_onnx(file, "m", tmp_path / "work", runner)
    assert model.config == parse(
        """
        name: "m" backend: "python" max_batch_size: 1
        input [ { name: "x" data_type: TYPE_FP32 dims: [ -1, 4 ] } ]
        output [ { name: "y" data_type: TYPE_FP32 dims: [ -1, 3 ] } ]
        instance_group [ { count: 1 kind: KIND_CPU } ]
        parameters { key: "intra_op_threads" value: { string_value: "1" } }
        """,
        "expected",
    )
    assert read(model.source / "config.pbtxt") == model.config
    assert (model.source / "1" / "model.py").read_text() == "# the runner\n"
    assert model.onnx is not None
    assert model.onnx.read_bytes() == file.read_bytes()
    assert model.runner


def test_building_again_replaces_what_was_built(tmp_path: Path, runner: Path):
    file = onnx_models.linear(tmp_path / "any.onnx")
    first = from_onnx(file, "m", tmp_path / "work", runner)
    (first.source / "1" / "stale").write_text("")
    again = from_onnx(file, "m", tmp_path / "work", runner)
    assert again == first
    assert sorted(e.name for e in (again.source / "1").iterdir()) == ["model.onnx", "model.py"]
    assert [entry.name for entry in (tmp_path / "work").iterdir()] == ["m"]


def test_a_tensor_without_dimensions_is_declared_with_a_reshape(tmp_path: Path, runner: Path):
    model = from_onnx(onnx_models.row_sum(tmp_path / "s.onnx"), "m", tmp_path / "work", runner)
    assert list(model.config.output[0].dims) == [1]
    assert model.config.output[0].HasField("reshape")
    assert not model.config.output[0].reshape.shape


def test_external_weights_come_along(tmp_path: Path, runner: Path):
    (tmp_path / "weights").mkdir()
    file = onnx_models.linear(tmp_path / "m.onnx", external="weights/m.data")
    model = from_onnx(file, "m", tmp_path / "work", runner)
    assert (model.source / "1" / "weights" / "m.data").is_file()
    assert model.onnx is not None
    assert read_graph(model.onnx).external == (PurePosixPath("weights/m.data"),)


def test_missing_and_truncated_external_weights_are_refused(tmp_path: Path, runner: Path):
    file = onnx_models.linear(tmp_path / "m.onnx", external="m.data")
    data = tmp_path / "m.data"
    data.write_bytes(data.read_bytes()[:8])
    with pytest.raises(InputRefused, match=r"m\.data is truncated"):
        from_onnx(file, "m", tmp_path / "work", runner)
    data.unlink()
    with pytest.raises(InputRefused, match="file that is missing"):
        from_onnx(file, "m", tmp_path / "work", runner)


def test_weights_outside_the_model_s_directory_are_refused(tmp_path: Path, runner: Path):
    file = onnx_models.linear(tmp_path / "m.onnx", external="m.data")
    model = onnx.load(file, load_external_data=False)
    for tensor in model.graph.initializer:
        tensor.external_data[0].value = "../m.data"
    file.write_bytes(model.SerializeToString())
    with pytest.raises(InputRefused, match="outside its own directory"):
        from_onnx(file, "m", tmp_path / "work", runner)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.5, 0.9, 0.99])
def test_a_truncated_onnx_file_is_refused(tmp_path: Path, runner: Path, share: float):
    whole = onnx_models.linear(tmp_path / "m.onnx").read_bytes()
    (tmp_path / "m.onnx").write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(InputRefused, match=r"not a whole ONNX file|cannot load"):
        from_onnx(tmp_path / "m.onnx", "m", tmp_path / "work", runner)


@pytest.mark.parametrize("content", [b"version https://git-lfs.github.com/spec/v1\n", b"\x00" * 99])
def test_a_file_that_is_no_onnx_is_refused(tmp_path: Path, runner: Path, content: bytes):
    (tmp_path / "m.onnx").write_bytes(content)
    with pytest.raises(InputRefused, match="not a whole ONNX file"):
        from_onnx(tmp_path / "m.onnx", "m", tmp_path / "work", runner)


def test_a_missing_onnx_file_is_refused(tmp_path: Path, runner: Path):
    with pytest.raises(InputRefused, match="does not exist"):
        from_onnx(tmp_path / "none.onnx", "m", tmp_path / "work", runner)
    with pytest.raises(InputRefused, match="is a directory"):
        from_onnx(tmp_path, "m", tmp_path / "work", runner)


@pytest.mark.parametrize(
    ("dims", "out", "tensor"),
    [((1, 4), (1, 3), "'x'"), (("batch", 4), (1, 3), "'y'"), ((4,), (3,), "'x'")],
)
def test_a_fixed_batch_dimension_is_refused_with_how_to_free_it(
    tmp_path: Path,
    runner: Path,
    dims: tuple[int | str, ...],
    out: tuple[int | str, ...],
    tensor: str,
):
    file = onnx_models.linear(tmp_path / "m.onnx", input_dims=dims, output_dims=out)
    with pytest.raises(InputRefused, match=f"batch dimension of {tensor} is fixed") as refused:
        from_onnx(file, "m", tmp_path / "work", runner)
    assert "update_model_dims" in refused.value.next_step


def test_outputs_that_are_no_tensors_are_refused(tmp_path: Path, runner: Path):
    file = onnx_models.sequence_output(tmp_path / "m.onnx")
    with pytest.raises(InputRefused, match=r"cannot be served.*seq\(tensor"):
        from_onnx(file, "m", tmp_path / "work", runner)


def test_a_datatype_without_a_numpy_type_is_refused(tmp_path: Path, runner: Path):
    file = onnx_models.single(tmp_path / "m.onnx", "Identity", TensorProto.BFLOAT16)
    with pytest.raises(InputRefused, match=r"cannot be served.*bfloat16"):
        from_onnx(file, "m", tmp_path / "work", runner)


def test_a_work_directory_that_cannot_be_written_is_refused(tmp_path: Path, runner: Path):
    file = onnx_models.linear(tmp_path / "m.onnx")
    with pytest.raises(InputRefused, match="cannot build"):
        from_onnx(file, "m", file / "below", runner)


# ------------------------------------------------------- the runner in place of a native backend
NATIVE = """
platform: "onnxruntime_onnx" max_batch_size: 8 dynamic_batching { preserve_ordering: true }
default_model_filename: "model.onnx"
parameters { key: "intra_op_thread_count" value: { string_value: "2" } }
optimization { graph { level: 1 } }
"""


def native_model(
    tmp_path: Path, runner: Path, text: str = NATIVE
) -> tuple[ServedModel, ServedModel]:
    source = put_onnx(tmp_path / "models", "m", text + IO)
    (source / "labels.txt").write_text("cat")
    native = from_repository(tmp_path / "models", "m", tmp_path / "work")
    return native, adapt_for_embedded(native, tmp_path / "work", runner)


def test_a_native_onnx_model_is_served_through_the_runner_with_its_own_settings(
    tmp_path: Path, runner: Path
):
    native, adapted = native_model(tmp_path, runner)
    assert adapted.native is native
    assert adapted.runner
    assert adapted.config.backend == "python"
    assert (adapted.config.platform, adapted.config.default_model_filename) == ("", "")
    assert adapted.config.parameters["intra_op_thread_count"].string_value == "2"
    # Where the user's is silent, what the ONNX Runtime backend then does.
    assert adapted.config.parameters["inter_op_thread_count"].string_value == "0"
    assert adapted.config.dynamic_batching.preserve_ordering
    assert adapted.config.instance_group[0].count == 2  # the ONNX Runtime backend's default
    assert (adapted.source / "labels.txt").read_text() == "cat"
    assert (adapted.source / "1" / "model.py").read_text() == "# the runner\n"
    assert adapted.onnx is not None
    assert adapted.onnx.is_file()


def test_adapting_leaves_the_user_s_own_files_as_they_were(tmp_path: Path, runner: Path):
    native, _ = native_model(tmp_path, runner)
    assert (native.source / "config.pbtxt").read_text() == NATIVE + IO
    assert [entry.name for entry in (native.source / "1").iterdir()] == ["model.onnx"]


def test_a_native_model_without_a_configuration_can_be_adapted_too(tmp_path: Path, runner: Path):
    put_onnx(tmp_path / "models", "m", None)
    native = from_repository(tmp_path / "models", "m", tmp_path / "work")
    adapted = adapt_for_embedded(native, tmp_path / "work", runner)
    assert read(native.source / "config.pbtxt").backend == "onnxruntime"
    assert read(adapted.source / "config.pbtxt").backend == "python"


def test_python_models_are_left_alone_and_others_refused(tmp_path: Path, runner: Path):
    put_model(tmp_path, "p", "backend: 'python'" + IO)
    python = from_repository(tmp_path, "p", tmp_path)
    assert adapt_for_embedded(python, tmp_path / "work", runner) is python
    put_model(tmp_path, "t", "platform: 'tensorrt_plan'" + IO, ("1/model.plan",))
    with pytest.raises(InputRefused, match="Python backend alone"):
        adapt_for_embedded(from_repository(tmp_path, "t", tmp_path), tmp_path / "work", runner)


def test_the_reference_of_an_earlier_export_is_its_own_onnx_file(tmp_path: Path):
    file = onnx_models.linear(tmp_path / "any.onnx")
    built = from_onnx(file, "m", tmp_path / "work")
    again = from_repository(tmp_path / "work", "m", tmp_path / "other")
    assert again.runner
    assert again.onnx == built.onnx


def test_the_runner_knows_the_same_types_as_the_repository_it_is_put_into():
    # The runner stands alone in a model repository: it cannot import the table.
    tree = ast.parse(RUNNER.read_text())
    (table,) = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "ONNX_TYPES"
    ]
    assert table == onnx_graph._TRITON_TYPES


def test_a_configuration_that_does_not_exist_is_said_not_to(tmp_path: Path):
    put_model(tmp_path / "models", "m", None)
    with pytest.raises(InputRefused, match=r"m/config\.pbtxt does not exist") as refused:
        from_repository(tmp_path / "models", "m", tmp_path / "work")
    assert "Write one" in refused.value.next_step
