"""Python models: the contract of the user's class, in this process and in one of its own."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from flambeau.protocol.signature import Signature
from flambeau.protocol.tensors import Array, object_array
from services.errors import BackendError, InputRefusedError
from services.inference.backends.backend import Backend
from services.inference.backends.open_backend import open_backend
from services.inference.backends.open_options import OpenOptions
from services.inference.isolation.isolated_backend import open_isolated_backend
from tests.fixtures.misbehaving_models import SIGNATURE, WIDTH
from tests.fixtures.onnx_models import linear
from tests.fixtures.python_models import DOUBLING, signature_of, verified

Open = Callable[..., Backend]

TEXT = signature_of([("text", "BYTES", (-1,))], [("label", "BYTES", (-1,)), ("n", "INT64", (-1,))])


@pytest.fixture(params=[open_backend, open_isolated_backend])
def opens(request: pytest.FixtureRequest) -> Iterator[Open]:
    backends = []

    def opened(source: str, signature: Signature = SIGNATURE, **how: object) -> Backend:
        backends.append(request.param(verified(source, signature, **how), OpenOptions()))
        backend: Backend = backends[-1]
        return backend

    yield opened
    for backend in backends:
        backend.close()


def rows(*values: float) -> dict[str, Array]:
    return {"x": np.repeat(np.array(values, np.float32)[:, None], WIDTH, axis=1)}


def text(*values: str) -> dict[str, Array]:
    return {"text": object_array([value.encode() for value in values])}


def test_a_batch_is_answered(opens: Open) -> None:
    backend = opens(DOUBLING)
    assert (backend.platform, backend.gives_parts) == ("flambeau_python", False)
    for _ in range(2):
        assert backend.run(rows(1, 2))["y"].tolist() == [[2] * WIDTH, [4] * WIDTH]


@pytest.mark.parametrize(
    "method",
    [
        "def infer(self, inputs): return {'label': [t.decode().upper() for t in inputs['text']],"
        " 'n': np.array([len(t) for t in inputs['text']])}",
        "async def infer(self, inputs):\n"
        "        await asyncio.sleep(0)\n"
        "        return {'label': np.array([t.upper() for t in inputs['text']]),"
        " 'n': [len(t) for t in inputs['text']]}",
        "def infer_one(self, text): return {'label': text.decode().upper(), 'n': len(text)}",
        "async def infer_one(self, text):\n"
        "        self.gate.set() if text == b'de' else await self.gate.wait()\n"
        "        return {'label': text.upper(), 'n': len(text)}",
    ],
)
def test_text_is_answered_by_each_form_of_the_method(opens: Open, method: str) -> None:
    """Rows of an `async def infer_one` run together: one waits for the other here."""
    backend = opens(
        f"import asyncio, numpy as np\nclass Model:\n"
        f"    def load(self, context): self.gate = asyncio.Event()\n    {method}\n",
        TEXT,
    )
    found = backend.run(text("abc", "de"))
    assert found["label"].tolist() == [b"ABC", b"DE"]
    assert (str(found["n"].dtype), found["n"].tolist()) == ("int64", [3, 2])


def test_a_single_output_needs_no_name_and_rows_are_stacked(opens: Open) -> None:
    one = opens("class Model:\n def infer_one(self, x): return x * 2")
    assert one.run(rows(1, 3))["y"].tolist() == [[2] * WIDTH, [6] * WIDTH]
    together = opens("class Model:\n def infer(self, inputs): return inputs['x'] * 2")
    assert together.run(rows(1, 3))["y"].tolist() == [[2] * WIDTH, [6] * WIDTH]


def test_the_context_has_files_settings_and_networks(opens: Open) -> None:
    source = """
    import numpy as np
    from pathlib import Path

    class Model:
        async def load(self, context):
            self.words = context.files["words.txt"].read_text().split()
            assert (Path(__file__).parent / "words.txt") == context.files["words.txt"]
            self.network = context.network("linear.onnx")
            self.step, self.device = context.args["step"], context.device
            context.logger.info("loaded")

        def infer(self, inputs):
            y = self.network(x=inputs["x"])["y"] + self.step
            assert (y == self.network({"x": inputs["x"]})["y"] + self.step).all()
            return {"y": y, "word": [self.words[0] + self.device] * len(y)}
    """
    signature = signature_of(
        [("x", "FP32", (-1, WIDTH))], [("y", "FP32", (-1, WIDTH)), ("word", "BYTES", (-1,))]
    )
    files = {"words.txt": b"red green", "linear.onnx": linear(3.0)}
    found = opens(source, signature, files=files, args={"step": 1}).run(rows(2))
    assert found["y"].tolist() == [[7] * WIDTH]
    assert found["word"].tolist() == [b"redcpu"]


def test_side_files_lie_in_a_private_folder_that_ends_with_the_model(opens: Open) -> None:
    source = """
    class Model:
        def load(self, context): self.path = str(context.files["a.txt"])
        def infer(self, inputs): return [self.path] * len(inputs["x"])
    """
    signature = signature_of([("x", "FP32", (-1, WIDTH))], [("path", "BYTES", (-1,))])
    backend = opens(source, signature, files={"a.txt": b"a"})
    file = Path(backend.run(rows(1))["path"][0].decode())
    assert oct(file.parent.stat().st_mode)[-3:] == "500"
    assert oct(file.stat().st_mode)[-3:] == "400"
    backend.close()
    assert not file.parent.exists()


@pytest.mark.parametrize("is_async", [False, True])
def test_a_generator_gives_many_answers(opens: Open, is_async: bool) -> None:
    source = f"""
    import numpy as np

    class Model:
        {"async " if is_async else ""}def infer(self, inputs):
            if (inputs["x"] == 13).any():
                raise ValueError("thirteen")
            for number in range(3):
                yield {{"y": inputs["x"] + np.float32(number)}}
    """
    backend = opens(source)
    assert backend.gives_parts
    parts = [part["y"][0, 0] for part in backend.run_in_parts(rows(5, 6))]
    assert parts == [5, 6, 7]
    assert backend.run(rows(5))["y"][0, 0] == 7
    with pytest.raises(InputRefusedError, match="thirteen"):
        list(backend.run_in_parts(rows(13)))
    left = backend.run_in_parts(rows(1))
    next(left)
    left.close()
    assert len(list(backend.run_in_parts(rows(1)))) == 3


def test_a_generator_of_one_row_takes_one_row(opens: Open) -> None:
    backend = opens("class Model:\n def infer_one(self, x):\n  yield x\n  yield x * 2")
    assert [part["y"][0, 0] for part in backend.run_in_parts(rows(5))] == [5, 10]
    with pytest.raises(BackendError, match="a batch has 2 rows; publish it with max_batch_size 1"):
        list(backend.run_in_parts(rows(5, 6)))


def test_a_refusal_and_a_fault_are_told_apart_and_the_rest_goes_on(opens: Open) -> None:
    source = """
    import sys

    class Model:
        def infer_one(self, x):
            if x[0] == 1:
                raise ValueError("one is too few")
            if x[0] == 2:
                return {}[2]
            if x[0] == 3:
                sys.exit(3)
            if x[0] == 4:
                return self.infer_one(x)
            if x[0] == 5:
                x[0] = 6
            if x[0] == 7:
                input()
            if x[0] == 9:
                raise ValueError(b"\\xff is no word".decode(errors="surrogateescape"))
            if x[0] == 10:
                raise ValueError("long" * 1_000_000)
            return x * 2
    """
    backend = opens(source)
    with pytest.raises(InputRefusedError, match=r"^one is too"):
        backend.run(rows(8, 1))
    with pytest.raises(InputRefusedError, match=r"^\? is no word$"):
        backend.run(rows(9))
    with pytest.raises(InputRefusedError) as long:
        backend.run(rows(10))
    assert len(str(long.value)) < 10_000
    faults = {
        2: r"Model.infer_one raised KeyError: 2 \(function infer_one, line 9\)",
        3: r"Model.infer_one raised SystemExit: 3 \(function infer_one, line 11\)",
        4: "raised RecursionError: maximum recursion depth exceeded",
        5: "read-only; inputs must not be changed, so copy the array first",
    }
    for value, words in faults.items():
        with pytest.raises(BackendError, match=words) as failed:
            backend.run(rows(8, value))
        assert not isinstance(failed.value, InputRefusedError)
        assert "\n" not in str(failed.value)
    assert backend.run(rows(8))["y"].tolist() == [[16] * WIDTH]


def test_the_traceback_goes_with_a_fault(opens: Open) -> None:
    backend = opens("class Model:\n def infer(self, inputs):\n  return inputs['z']")
    with pytest.raises(BackendError, match="KeyError: 'z'") as failed:
        backend.run(rows(1))
    notes = "".join(getattr(failed.value, "__notes__", ()))
    assert "return inputs['z']" in notes or isinstance(failed.value.__cause__, Exception)


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ("{'z': 1}", r"returned 'z', which is no output \(known: y\)"),
        ("{}", "did not return output 'y'; the signature has y"),
        ("None", "returned a NoneType; return a dict of the outputs by name"),
        ("inputs['x'][:1]", r"'y' of shape \[1, 4\] for 2 rows; its first dimension must be the b"),
        ("np.float32(1)", r"'y' of shape \[\] for 2 rows"),
        ("inputs['x'].astype(np.float64)", r"as FP64 \[2, 4\]; the signature has FP32 \[-1, 4\]"),
        ("inputs['x'][:, :2]", r"as FP32 \[2, 2\]; the signature has FP32 \[-1, 4\]"),
        ("inputs['x'].astype(complex)", "arrays of type complex128 have no datatype"),
        ("['a', 'b']", r"as BYTES \[2\]; the signature has FP32 \[-1, 4\]"),
        ("['a', 1]", r"as BYTES \[2\]; the signature has FP32"),
        ("[object(), 1]", "returned 'y' with a BYTES element is a object; give bytes or text"),
        ("[[1, 2], [3]]", "returned 'y' as a list, which is no array"),
        ("np.broadcast_to(np.float32(1), (2, 2**31))", r"'y' of 17,179,869,184 bytes; at most 1,0"),
    ],
)
def test_answers_are_checked(result: str, words: str) -> None:
    backend = open_backend(
        verified(f"import numpy as np\nclass Model:\n def infer(self, inputs): return {result}\n"),
        OpenOptions(),
    )
    with pytest.raises(BackendError, match=words):
        backend.run(rows(1, 2))
    backend.close()


def test_rows_of_different_shapes_are_no_batch() -> None:
    signature = signature_of([("x", "FP32", (-1, WIDTH))], [("y", "FP32", (-1, -1))])
    source = "class Model:\n def infer_one(self, x): return x[:int(x[0])]"
    backend = open_backend(verified(source, signature), OpenOptions())
    assert backend.run(rows(2, 2))["y"].shape == (2, 2)
    with pytest.raises(BackendError, match=r"of shapes \[2\] and \[3\] for two rows of a batch"):
        backend.run(rows(2, 3))
    backend.close()


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("class Modell: pass", r"its file has no 'Model' \(did you mean 'Modell'\?\)"),
        ("import nothing_like_it", "its file does not run: ModuleNotFoundError"),
        ("class Model: pass", "class Model has neither 'infer' nor 'infer_one'; write one"),
        ("class Model:\n def infer(self, i): 1\n def infer_one(self): 1", "has both 'infer' and"),
        ("class Model:\n def __init__(self, a): 1", "Model.__init__ raised TypeError"),
        (
            "class Model:\n def infer(self, i): 1\n def load(self, c): raise ValueError('no')",
            r"Model.load raised ValueError: no \(function load, line 3\)",
        ),
        (
            "class Model:\n def infer(self, i): 1\n def load(self, c): c.network('a.onnx')",
            "Model.load raised ValueError: there is no side file 'a.onnx'",
        ),
        (
            "class Model:\n def infer(self, i): 1\n def load(self, c): c.network('a.txt')",
            "'a.txt' is no .onnx file, and context.network opens no other",
        ),
    ],
)
def test_a_class_that_cannot_be_loaded_is_refused(opens: Open, source: str, words: str) -> None:
    with pytest.raises(BackendError, match=words):
        opens(source, files={"a.txt": b""})


def test_further_modules_are_imported_by_a_process_of_its_own() -> None:
    source = "from beside import factor\n" + DOUBLING.replace("2 *", "factor *")
    artifact = verified(source, files={"beside.py": b"import numpy\nfactor = numpy.float32(2)"})
    backend = open_isolated_backend(artifact, OpenOptions())
    assert backend.run(rows(1))["y"].tolist() == [[2] * WIDTH]
    backend.close()
    words = "side file 'beside.py' is a module, which only a process of its own can import"
    with pytest.raises(ValueError, match=re.escape(words)):
        verified(source, files={"beside.py": b""}, process="shared")
