"""Requests to the handler of an exported archive: the forms of a row, and bad ones."""

import gc
import io
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flambeau.exporting.archived_version.tensor import RefusedError
from flambeau.exporting.archived_version.version_handler import Version
from flambeau.protocol.signature import Padding
from model_store.golden import GoldenRows
from tests.fixtures import onnx_models, python_models, shaped_models
from tests.fixtures.exported_archives import opened

ECHO = """
class Model:
    def infer(self, inputs):
        return {"out": inputs["text"]}
"""


DESCRIBED = "{'descr': '%s', 'fortran_order': False, 'shape': (%s,)}"


def npy(array: Any, dtype: Any = np.float32, **how: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, np.asarray(array, dtype, **how))
    return file.getvalue()


def header(text: str, data: bytes = b"") -> bytes:
    """Returns a .npy of a header that is made up."""
    padded = text.encode().ljust(118) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(padded).to_bytes(2, "little") + padded + data


@pytest.fixture(scope="module")
def doubling(tmp_path_factory: pytest.TempPathFactory) -> Version:
    """y = 2 * x, FP32 [-1, 4]."""
    folder = tmp_path_factory.mktemp("doubling")
    store = str(folder / "store")
    return opened(store, onnx_models.publish(store, "m", onnx_models.linear(2)), folder)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Version:
    folder = tmp_path_factory.mktemp("pair")
    store = str(folder / "store")
    return opened(store, onnx_models.publish(store, "m", onnx_models.pair()), folder)


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Version:
    folder = tmp_path_factory.mktemp("texts")
    store = str(folder / "store")
    signature = python_models.signature_of([("text", "BYTES", (-1,))], [("out", "BYTES", (-1,))])
    text = np.array([b"a", "ü".encode(), b"\xff\x00"], np.object_)
    golden = GoldenRows({"text": text}, {"out": text})
    manifest = python_models.publish(store, "m", ECHO, signature, golden)
    return opened(store, manifest, folder)


ROW = [1.0, 2.0, 3.0, -4.5]


@pytest.mark.parametrize(
    "request_of_row",
    [
        {"body": {"x": ROW}},
        {"body": ROW},
        {"data": json.dumps({"x": ROW}).encode()},
        {"data": bytearray(json.dumps(ROW).encode())},
        {"body": npy(ROW)},
        {"x": npy(ROW)},
        {"x": bytearray(npy(ROW))},
        {"x": json.dumps(ROW).encode()},
        {"x": [1, 2, 3, -4.5]},
        {"body": json.dumps({"x": ROW})},
        {"x": json.dumps(ROW)},
    ],
)
def test_a_row_comes_in_every_form(doubling: Version, request_of_row: Mapping[str, Any]) -> None:
    assert doubling.answers([request_of_row]) == [{"y": [2.0, 4.0, 6.0, -9.0]}]


@pytest.mark.parametrize(
    ("bad", "word"),
    [
        ({}, "'x' is missing"),
        ({"body": {}}, "'x' is missing"),
        ({"body": b""}, "no JSON"),
        ({"body": b"{"}, "no JSON"),
        ({"body": b"[" * 100_000}, "no JSON"),
        ({"body": {"z": ROW}}, "there is no input 'z'; give x"),
        ({"z" * 1000: b"1"}, "there is no input 'zzz"),
        ({"x": npy(ROW), "y": b""}, "there is no input 'y'"),
        ({"body": ROW[:3]}, "has a list of 3 where"),
        ({"body": [ROW]}, "has a list of 1 where"),
        ({"body": [1, 2, [3], 4]}, "a row has shape [4]"),
        ({"body": 1.0}, "has a float where"),
        ({"body": None}, "has a NoneType where"),
        ({"body": "abcd"}, "no JSON"),
        ({"x": "abcd"}, "no JSON"),
        ({"body": ["1", "2", "3", "4"]}, "takes FP32"),
        ({"body": [True] * 4}, "takes FP32"),
        ({"body": [{}] * 4}, "takes FP32"),
        ({"body": [10**400] * 4}, "FP32"),
        ({"body": [1e39] * 4}, "beyond FP32"),
        ({"body": {"b64": "AAAA"}}, "has a dict where"),
        ({"body": npy(ROW, np.float64)}, "is float64, and it takes FP32"),
        ({"body": npy(ROW, object)}, "is object, and it takes FP32"),
        ({"body": npy(ROW)[:-1]}, "15 bytes of data"),
        ({"body": npy(ROW) + b"\0"}, "17 bytes of data"),
        ({"body": npy(ROW)[:20]}, "no .npy"),
        ({"body": b"\x93NUMPY"}, "no .npy"),
        ({"body": b"\x93NUMPY\x09\x09" + b"\0" * 200}, "no .npy"),
        ({"body": header("exit(3)")}, "no .npy"),
        ({"body": header(DESCRIBED % ("<f4", "9" + "0" * 40))}, "and a row has shape [4]"),
        ({"body": header(DESCRIBED % ("<f4", "-4"))}, "and a row has shape [4]"),
        ({"body": header(DESCRIBED % ("O", "4"), b"cos\nsystem\n")}, "is object, and it takes"),
    ],
)  # fmt: skip
def test_a_bad_row_is_refused_alone(doubling: Version, bad: Mapping[str, Any], word: str) -> None:
    good = {"body": ROW}
    first, found, last = doubling.answers([good, bad, good])
    assert isinstance(found, RefusedError)
    assert word in str(found)
    assert len(str(found)) < 500
    assert first == last == {"y": [2.0, 4.0, 6.0, -9.0]}


def test_a_body_of_very_many_lists_is_refused_soon(doubling: Version) -> None:
    body = b"[" + b"[]," * 1_000_000 + b"[1]]"
    started = time.process_time()
    (found,) = doubling.answers([{"body": body}])
    assert time.process_time() - started < 2
    assert isinstance(found, RefusedError)
    assert gc.isenabled()


def test_rows_of_different_sizes_and_inputs_do_not_mix(pair: Version) -> None:
    found = pair.answers(
        [
            {"body": {"a": [1.0], "b": [2.0]}},
            {"a": npy([1, 1]), "b": b"[2, 2]"},
            {"body": [1.0]},
            {"body": {"a": [3.0], "b": [3.0]}},
            {"body": {"a": [3.0, 3.0], "b": [3.0, 4.0, 5.0]}},
        ]
    )
    assert found[0] == {"total": [3.0], "difference": [-1.0]}
    assert found[1] == {"total": [3.0, 3.0], "difference": [-1.0, -1.0]}
    assert "names no input; give a, b" in str(found[2])
    assert found[3] == {"total": [6.0], "difference": [0.0]}
    assert isinstance(found[4], Exception)


@pytest.mark.parametrize(
    ("datatype", "good", "bad"),
    [
        ("INT8", [-128, 127], [128]),
        ("UINT8", [0, 255], [-1]),
        ("INT64", [2**63 - 1, -(2**63)], [2**63]),
        ("UINT64", [2**64 - 1], [-1]),
        ("INT32", [1, 2], [1.0]),
        ("BOOL", [True, False], [1]),
        ("FP16", [65504.0, 0.5], [65536.0]),
        ("FP64", [1e308, 5e-324], [True]),
    ],
)
def test_numbers_keep_their_value(
    tmp_path: Path, datatype: str, good: list[Any], bad: list[Any]
) -> None:
    store = str(tmp_path / "store")
    manifest = onnx_models.publish(store, "m", onnx_models.echo(datatype))
    version = opened(store, manifest, tmp_path)
    found = version.answers([{"body": good}, {"body": bad}, {"body": []}])
    assert found[0] == {f"out_{datatype}": good}
    assert isinstance(found[1], RefusedError)
    assert found[2] == {f"out_{datatype}": []}


def test_texts_are_bytes_text_or_base64(texts: Version) -> None:
    found = texts.answers(
        [
            {"body": b'{"text": 1}'},
            {"body": "grüße"},
            {"body": {"text": "a"}},
            {"text": bytearray(b"\xff\x00")},
            {"body": {"text": {"b64": "/wA="}}},
            {"body": {"b64": "/wA="}},
            {"body": {"text": {"b64": "*"}}},
            {"body": {"text": {"b64": 1}}},
            {"body": {"text": "\ud800"}},
            {"body": {"text": 1}},
            {"body": ["a"]},
            {"body": npy([1])},
        ]
    )
    assert found[0] == {"out": '{"text": 1}'}
    assert found[1] == {"out": "grüße"}
    assert found[2] == {"out": "a"}
    assert found[3] == found[4] == found[5] == {"out": {"b64": "/wA="}}
    assert all(isinstance(one, RefusedError) for one in found[6:11]), found[6:11]
    assert found[11] == {"out": {"b64": found[11]["out"]["b64"]}}  # type: ignore[index]


def test_lengths_limits_and_masks(tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    padding = Padding(inputs={"tokens": 1}, outputs={"doubled": 1}, buckets=(4, 8), mask="mask")
    tokens = np.arange(1, 9, dtype=np.int64).reshape(2, 4)
    manifest = onnx_models.publish(
        store,
        "m",
        onnx_models.masked_sum(),
        golden={"tokens": tokens, "mask": np.ones_like(tokens)},
        padding=padding,
    )
    found = opened(store, manifest, tmp_path).answers(
        [
            {"body": {"tokens": [1, 2, 3]}},
            {"body": {"tokens": [5, 6], "mask": [1, 0]}},
            {"body": {"tokens": [1] * 9}},
            {"body": {"tokens": []}},
            {"body": {"tokens": [1, 2], "mask": [1]}},
        ]
    )
    assert found[0] == {"total": 6, "doubled": [2, 4, 6]}
    assert found[1] == {"total": 5, "doubled": [10, 12]}
    assert "length 9; give 1 to 8" in str(found[2])
    assert "length 0" in str(found[3])
    assert "'mask' has length 1" in str(found[4])


@pytest.mark.parametrize("name", ["scaled", "whole", "stateful", "shouting", "biased", "shared"])
def test_versions_of_unusual_shapes_answer_their_golden_rows(tmp_path: Path, name: str) -> None:
    store = str(tmp_path / "store")
    opened(store, shaped_models.publish(store, name), tmp_path)


def test_values_without_a_batch_are_shared_by_equal_rows_alone(tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    version = opened(store, shaped_models.publish(store, "shared"), tmp_path)
    rows = [{"body": {"x": float(n), "table": [float(n % 2)] * 3}} for n in range(6)]
    assert version.answers(rows) == [{"y": n + 3.0 * (n % 2)} for n in range(6)]


def test_optional_inputs_may_be_missing(tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    version = opened(store, shaped_models.publish(store, "biased"), tmp_path)
    found = version.answers([{"body": [1.0] * 3}, {"body": {"x": [1.0] * 3, "bias": [0.0] * 3}}])
    assert found == [{"y": [2.0, 3.0, 4.0]}, {"y": [1.0, 1.0, 1.0]}]
