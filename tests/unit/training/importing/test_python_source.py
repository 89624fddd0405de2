"""Python models: what is learned of a class from its examples, and what is refused."""

import json
from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest
import torch

from flambeau.protocol.tensors import Array, object_array
from model_store.golden import GoldenRows
from model_store.manifest import Artifact, PythonProcess
from model_store.store import ModelStore
from services.inference.loading.loader import LoadError, LoadOptions, load_version
from tests.fixtures.onnx_models import linear
from tests.fixtures.store_versions import artifact_in, entry_in, publish_artifacts
from training.errors import DataError, TargetError
from training.exporters.python_model import copy_class, description_of
from training.importing.original import Original
from training.importing.recording import record_outputs
from training.importing.request import limits_here
from training.importing.sources.python_source import python_original
from training.recipe.recipe import ExportLimits

X = {"x": np.arange(12, dtype=np.float32).reshape(6, 2)}
TEXTS = {"text": object_array([b"a bc", b"d", b"e f g"])}


def original(
    folder: Path,
    source: str,
    examples: Any = X,
    args: Mapping[str, Any] | None = None,
    files: Mapping[str, bytes] | None = None,
    **how: Any,
) -> Original:
    """Returns class `Model` of the source, with its side files."""
    given, staging = folder / "given", folder / "staging"
    for one in (given, staging):
        one.mkdir(parents=True)
    (given / "mine.py").write_text(dedent(source))
    for name, data in (files or {}).items():
        (given / name).write_bytes(data)
    paths = {name: given / name for name in files or {}}
    return python_original(given / "mine.py", "Model", args or {}, paths, examples, staging, **how)


def specs(found: Original) -> list[tuple[str, str, tuple[int, ...]]]:
    signature = found.signature
    return [(s.name, s.datatype, s.shape) for s in (*signature.inputs, *signature.outputs)]


def test_the_signature_is_learned_from_the_examples(tmp_path: Path) -> None:
    source = """
    import numpy as np

    class Model:
        def load(self, context):
            self.words = context.files["words.txt"].read_text()
            self.network = context.network("scores.onnx")

        def infer(self, inputs):
            rows = [[float(len(text)), 1, 1, 1] for text in inputs["text"]]
            scores = self.network(x=np.array(rows, np.float32))["y"]
            return {"first": [text.split()[0] for text in inputs["text"]], "score": scores}
    """
    files = {"words.txt": b"a", "scores.onnx": linear(2.0)}
    found = original(tmp_path, source, TEXTS, {"a": 1}, files)
    assert specs(found) == [
        ("text", "BYTES", (-1,)), ("first", "BYTES", (-1,)), ("score", "FP32", (-1, 4)),
    ]  # fmt: skip
    assert (found.kind, found.signature.max_batch_size, found.notes) == ("python", 32, ())
    assert found.source == "class Model of mine.py"
    described = description_of(found.file)
    assert (described.name, described.args) == ("Model", {"a": 1})
    assert [entry.file for entry in described.files] == ["words.txt", "scores.onnx"]
    assert (found.file.parent / "words.txt").read_bytes() == b"a"
    (recorded,) = record_outputs(found, TEXTS, ExportLimits())
    assert recorded.outputs["first"].tolist() == [b"a", b"d", b"e"]
    assert recorded.outputs["score"][:, 0].tolist() == [8, 2, 10]


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("suffix", [".pt", ".pt2"])
def test_networks_of_other_kinds_open_as_the_error_says(tmp_path: Path, suffix: str) -> None:
    source = """
    import torch

    class Model:
        def load(self, context):
            try:
                context.network(context.args["net"])
            except ValueError as error:
                call = str(error).rpartition(" by ")[2]
            self.net = eval(call, {"context": context, "torch": torch})

        def infer(self, inputs):
            return self.net(torch.tensor(inputs["x"])).numpy()
    """
    net, x = torch.nn.ReLU(), torch.tensor(X["x"])
    if suffix == ".pt":
        torch.jit.save(torch.jit.script(net), tmp_path / "net.pt")
    else:
        rows = {0: torch.export.Dim("rows")}
        torch.export.save(
            torch.export.export(net, (x,), dynamic_shapes=[rows]), tmp_path / "net.pt2"
        )
    name = f"net{suffix}"
    files = {name: (tmp_path / name).read_bytes()}
    found = original(tmp_path, source, args={"net": name}, files=files)
    (recorded,) = record_outputs(found, X, ExportLimits())
    assert recorded.outputs["output"].tolist() == X["x"].tolist()


def test_axes_that_differ_between_examples_vary(tmp_path: Path) -> None:
    source = "class Model:\n def infer(self, inputs): return {'y': inputs['x'][:, ::-1]}"
    found = original(tmp_path, source, [X, {"x": np.zeros((2, 5), np.float32)}])
    assert specs(found) == [("x", "FP32", (-1, -1)), ("y", "FP32", (-1, -1))]
    assert found.signature.dynamic == {"x": {1: (2, 5)}}


def test_rows_whose_answers_differ_in_shape_run_alone(tmp_path: Path) -> None:
    source = "class Model:\n def infer_one(self, text): return {'words': text.split()}"
    texts = {"text": object_array([b"a bc", b"d", b"", b"e f g", b"h i"])}
    found = original(tmp_path, source, texts)
    assert specs(found)[1] == ("words", "BYTES", (-1, -1))
    assert found.signature.max_batch_size == 1
    assert "different shapes, so requests have one row each" in found.notes[0]
    recorded = record_outputs(found, texts, ExportLimits())
    assert [one.rows for one in recorded] == [[0, 4], [1], [2], [3]]
    assert recorded[0].outputs["words"].tolist() == [[b"a", b"bc"], [b"h", b"i"]]


def test_a_largest_batch_of_one_lets_any_row_differ_in_shape(tmp_path: Path) -> None:
    source = "class Model:\n def infer_one(self, text): return {'words': text.split()}"
    texts = {"text": object_array([b"one"] * 40 + [b"and two"])}
    found = original(tmp_path, source, texts, max_batch_size=1)
    assert specs(found)[1] == ("words", "BYTES", (-1, -1))
    found = original(tmp_path / "larger", source, texts)
    with pytest.raises(
        TargetError, match=r"of shapes .* or publish the model with max_batch_size=1"
    ):
        record_outputs(found, texts, ExportLimits())


@pytest.mark.parametrize("process", ["own", "shared"])
def test_the_process_is_kept(tmp_path: Path, process: PythonProcess) -> None:
    source = "class Model:\n def infer(self, inputs): return {'y': inputs['x']}"
    found = original(tmp_path, source, process=process)
    assert description_of(found.file).process == process
    if process == "shared":
        with pytest.raises(TargetError, match=r"'more.py' is a module.*choose process 'own'"):
            original(tmp_path / "more", source, process=process, files={"more.py": b""})


def test_a_generator_of_one_row_runs_alone(tmp_path: Path) -> None:
    source = "class Model:\n def infer_one(self, text):\n  yield text\n  yield text + b'.'"
    assert original(tmp_path, source, TEXTS).signature.max_batch_size == 1


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("return rng.random((len(x), 2))", "output 'output' of Model differs between two runs"),
        ("return x - x.mean(axis=0)", "of Model for row 0 depends on the rows beside it"),
        ("out[:len(x)] = x; return out[:len(x)]", "changes after it was returned; return a new"),
        ("x /= 2; return x", "read-only; inputs must not be changed, so copy the array first"),
        ("raise ValueError('too long')", "it refuses the examples: too long"),
        ("return {}['a']", r"Model.infer raised KeyError: 'a' \(function infer, line 7\)"),
        ("import os; os._exit(3)", "cannot be published: its process ended with status 3"),
        ("import ctypes; ctypes.string_at(0)", "its process was ended by SIGSEGV"),
        ("import sys; sys.exit(2)", "Model.infer raised SystemExit: 2"),
        ("return np.ones(2**34)", r"needed more than [0-9.]+ GiB of memory|Unable to allocate"),
        ("return x if len(x) > 1 else x.astype(int)", "differs|depends on the rows beside it"),
        ("return x[0]", r"of shape \[2\] for 1 rows; its first dimension must be the batch"),
        ("return {'y': x + 1j}", "arrays of type complex64 have no datatype"),
    ],
)
def test_what_cannot_be_verified_is_refused_in_words(tmp_path: Path, body: str, words: str) -> None:
    source = f"""
    import numpy as np
    rng, out = np.random.default_rng(), np.zeros((32, 2), np.float32)
    class Model:
        def infer(self, inputs):
            x = inputs["x"]
            {body}
    """
    with pytest.raises(TargetError, match=words) as refused:
        original(tmp_path, dedent(source).lstrip("\n").replace("import numpy", "\nimport numpy", 1))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("free_gib", "limit_gib"), [(100, 16), (5, 5), (0.5, 2)])
def test_no_process_may_take_more_memory_than_is_free(
    monkeypatch: pytest.MonkeyPatch, free_gib: float, limit_gib: float
) -> None:
    monkeypatch.setattr("training.importing.request.free_bytes", lambda: free_gib * 2**30)
    assert limits_here().memory_gib == limit_gib


@pytest.mark.parametrize(
    ("examples", "words"),
    [
        ([], "a Python model needs examples"),
        ({"x": np.float32(1)}, "give each \\[rows, ...\\], with the same number of rows"),
        ({"x": np.zeros((0, 2))}, "at least 1"),
        ({"x": np.zeros((2, 2)), "z": np.zeros(3)}, "the same number of rows"),
        ([X, {"z": X["x"]}], r"one example has \['x'\], and another \['z'\]"),
        ([X, {"x": X["x"].astype(int)}], "'x' has the datatypes FP32 and INT64"),
        ([X, {"x": X["x"][:, 0]}], "'x' has different numbers of dimensions"),
        ([X, {"x": X["x"][:, :0]}], "'x' has size 0 along axis 1 here, and other sizes there"),
        ({"x": np.zeros(2, complex)}, "'x': arrays of type complex128 have no datatype"),
    ],
)
def test_examples_that_do_not_fit_are_refused(tmp_path: Path, examples: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        original(tmp_path, "class Model:\n def infer(self, inputs): return inputs['x']", examples)


@pytest.mark.parametrize(
    ("source", "files", "words"),
    [
        ("class Model(", {}, "mine.py is no Python file: '\\(' was never closed"),
        ("class Modell: pass", {}, "its file has no 'Model' \\(did you mean 'Modell'"),
        ("", {"report.json": b""}, "a version has a file 'report.json' of its own"),
        ("", {"model.py": b""}, "a version has a file 'model.py' of its own"),
        ("", {"json.py": b""}, "'json.py' has the name of an installed module"),
        ("", {"a b": b""}, "side file 'a b' is not allowed"),
    ],
)
def test_files_that_cannot_be_used_are_refused(
    tmp_path: Path, source: str, files: dict[str, bytes], words: str
) -> None:
    (tmp_path / "mine.py").write_text(source)
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    paths = {name: tmp_path / name for name in files}
    (tmp_path / "staging").mkdir()
    with pytest.raises(TargetError, match=words):
        python_original(tmp_path / "mine.py", "Model", {}, paths, X, tmp_path / "staging")


def published(folder: Path, found: Original, outputs: Mapping[str, Array]) -> ModelStore:
    """Publishes a class with recorded answers."""

    def artifact(target: Path) -> Artifact:
        copy_class(found.file, target / found.file.name)
        data = (target / found.file.name).read_bytes()
        return artifact_in(
            target, b"", name="python", kind="python", python=description_of(found.file),
            file=entry_in(target, found.file.name, data),
        )  # fmt: skip

    store = folder / "store"
    golden = GoldenRows(found.examples or {}, outputs)
    publish_artifacts(str(store), "mine", found.signature, golden, artifact)
    return ModelStore(str(store))


def test_recorded_answers_are_replayed_where_it_is_served(tmp_path: Path) -> None:
    source = """
    import json
    class Model:
        def load(self, context):
            self.factor = json.loads(context.files["factor.json"].read_text())
        def infer_one(self, x):
            return {"y": x * self.factor}
    """
    found = original(tmp_path, source, files={"factor.json": json.dumps(3).encode()})
    (recorded,) = record_outputs(found, X, ExportLimits())
    outputs = recorded.outputs
    store = published(tmp_path, found, outputs)
    loaded = load_version(store, store.manifest("mine", 1), LoadOptions())
    (backend,) = loaded.backends
    assert loaded.parity.max_abs_difference == 0
    assert backend.process_bytes() > 0
    assert backend.run({"x": X["x"][1:3]})["y"].tolist() == [[6, 9], [12, 15]]
    backend.close()

    others: dict[str, Array] = {"y": np.add(outputs["y"], np.float32(0.5))}
    store = published(tmp_path / "other", found, others)
    with pytest.raises(LoadError, match="replaying the golden rows on this machine: largest diff"):
        load_version(store, store.manifest("mine", 1), LoadOptions())
