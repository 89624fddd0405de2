"""`python -m bench.json_parsers`: cost of reading and writing tensors as JSON, by library.

In: nothing. Out: tables of microseconds, for docs/adr/0003-json-parser.md. Each row's candidates
are timed in turns, and the best turn of each counts, so that a busy machine slows all alike.
"""

import array
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np
import orjson

from flambeau.protocol.tensors import Array, datatype_of, object_array
from services.gateway.edges import rest_codec
from services.gateway.edges.json_bodies.fast_request import NOT_FAST, read_fast
from services.gateway.edges.json_bodies.strict_request import RestRequest, read_strictly
from services.gateway.edges.json_bodies.strict_slices import read_in_slices
from services.gateway.edges.json_bodies.tensors import from_json, packed
from services.gateway.sliced_work import at_once
from services.queueing.records import InferReply, Lane

TURNS = 15
TURN_S = 0.002
NUMPY = orjson.OPT_SERIALIZE_NUMPY
NO_BINARY = memoryview(b"")
RANDOM = np.random.default_rng(0)
SMALL, IMAGE = (1, 64), (1, 3, 64, 64)

Work = Callable[[], object]


class _Input(msgspec.Struct):
    name: str
    datatype: str
    shape: list[int]
    data: msgspec.Raw


class _Request(msgspec.Struct):
    inputs: list[_Input]


RAW = msgspec.json.Decoder(_Request)
ANY = msgspec.json.Decoder()


def main() -> None:
    """Measures and prints."""
    _parsing()
    _conversion()
    _writing()
    _codec()


def _parsing() -> None:
    _table("µs to parse a request to Python's objects")
    bodies = _bodies()
    for title, body in bodies.items():
        _row(title, {
            "orjson": partial(orjson.loads, body),
            "msgspec, untyped": partial(ANY.decode, body),
            "msgspec, data left raw": partial(RAW.decode, body),
        })  # fmt: skip
    _table("µs from a body to a request: the whole of decoding, ours")
    for title, body in bodies.items():
        _row(title, {
            "exact (orjson)": partial(read_strictly, body, NO_BINARY),
            "usual (msgspec)": partial(read_fast, body, NO_BINARY),
            "large (slices)": lambda body=body: at_once(read_in_slices(body, NO_BINARY)),  # type: ignore[misc]
        })  # fmt: skip


def _bodies() -> dict[str, bytes]:
    """Returns requests of one input, by description and size."""
    small, image = (RANDOM.standard_normal(shape).astype("f4") for shape in (SMALL, IMAGE))
    pixels = RANDOM.integers(0, 256, IMAGE)
    mixed = np.where(pixels % 2, pixels / 256, pixels)
    tensors: dict[str, tuple[Array, Any]] = {
        "64 FP32, flat": (small, small.ravel().tolist()),
        "64 FP32, nested": (small, small.tolist()),
        "256 FP32, flat": (np.tile(small, 4), np.tile(small, 4).ravel().tolist()),
        "1024 FP32, flat": (np.tile(small, 16), np.tile(small, 16).ravel().tolist()),
        "image FP32, flat, 17 digits": (image, image.ravel().tolist()),
        "image FP32, nested, 17 digits": (image, image.tolist()),
        "image FP32, flat, 9 digits": (image, image.ravel()),
        "image FP32, nested, 9 digits": (image, image),
        "image FP32, every other an integer": (
            image, [int(x) if x.is_integer() else x for x in mixed.ravel().tolist()]
        ),
        "image INT64, flat": (pixels, pixels.ravel().tolist()),
        "image BOOL, flat": (pixels > 127, (pixels > 127).ravel().tolist()),
        "1024 BYTES, flat": (object_array([b""] * 1024), ["some text"] * 1024),
    }  # fmt: skip
    bodies = {}
    for title, (tensor, data) in tensors.items():
        entry = {"name": "features", "datatype": datatype_of(tensor)}
        document = {"inputs": [entry | {"shape": tensor.shape, "data": data}]}
        body = orjson.dumps(document, option=NUMPY)
        bodies[f"{title} ({len(body) / 1000:.1f} kB)"] = body
    return bodies


def _conversion() -> None:
    _table("µs from a list of numbers to an FP32 array")
    for count in (SMALL[1], int(np.prod(IMAGE))):
        flat: list[float] = RANDOM.standard_normal(count).tolist()
        _row(f"{count} floats", {
            "only set(map(type, flat))": partial(lambda x: set(map(type, x)), flat),
            "np.array(f4)": partial(np.array, flat, np.float32),
            "np.array(f8).astype(f4)": partial(lambda x: np.array(x, "f8").astype("f4"), flat),
            "np.fromiter(f4)": partial(np.fromiter, flat, np.float32, len(flat)),
            "array.array('f')": partial(array.array, "f", flat),
            "struct.pack": partial(struct.Struct(f"<{count}f").pack, *flat),
            "checked, exact": partial(from_json, "FP32", [count], flat),
            "checked, packed": partial(packed, "FP32", [count], flat),
        })  # fmt: skip


def _writing() -> None:
    _table("µs to write the data of an FP32 output, one row of a batch of 32")
    for count in (10, 1000):
        row: Array = RANDOM.standard_normal((32, count)).astype("f4")[3:4]
        _row(f"{count} floats", {
            "orjson, NumPy": partial(lambda row: orjson.dumps(row.ravel(), option=NUMPY), row),
            "orjson, tolist": partial(lambda row: orjson.dumps(row.ravel().tolist()), row),
            "msgspec, tolist": partial(lambda row: msgspec.json.encode(row.ravel().tolist()), row),
            "only np.isfinite": partial(lambda row: np.isfinite(row).all(), row),
            "orjson, whole document": partial(_document, row),
        })  # fmt: skip


def _document(row: Array) -> bytes:
    output = {"name": "logits", "datatype": "FP32", "shape": row.shape, "data": row.ravel()}
    document = {"model_name": "mlp", "model_version": "1", "outputs": [output]}
    return orjson.dumps(document, option=NUMPY)


def _codec() -> None:
    _table("µs to decode and encode, as the edge calls it")
    image = RANDOM.standard_normal(IMAGE).astype("f4")
    parameters = {"binary_data_size": image.nbytes}
    entry = {"name": "x", "datatype": "FP32", "shape": IMAGE, "parameters": parameters}
    head = orjson.dumps({"inputs": [entry]})
    body = head + image.tobytes()
    _row("decode, image, binary", {"": partial(rest_codec.decode, body, str(len(head)), None)})
    small, *_ = _bodies().values()
    _row("decode, 64 FP32 as JSON", {"": partial(rest_codec.decode, small, None, None)})
    for count, binary in ((10, False), (10, True), (25_000, True), (2_500_000, True)):
        answer = _answer(np.zeros((1, count), np.float32))
        request = RestRequest(inputs=[], binary_by_default=binary)
        _row(f"encode, {count} FP32 as {'binary' if binary else 'JSON'}", {
            "": partial(rest_codec.encode, answer, request),
            "joined": partial(_joined, answer, request),
        })  # fmt: skip


def _joined(answer: InferReply, request: RestRequest) -> bytes:
    body = rest_codec.encode(answer, request)
    assert isinstance(body, rest_codec.RestBody)  # Only JSON is written in slices.
    return b"".join(body.parts)


def _answer(output: Array) -> InferReply:
    return InferReply(
        lane=Lane("mlp", 1),
        outputs={"logits": output},
        datatypes={"logits": "FP32"},
        batch_rows=1,
        queue_s=0,
        execution_s=0,
    )


def _table(title: str) -> None:
    print(f"\n{title}")


def _row(title: str, candidates: Mapping[str, Work]) -> None:
    """Times the candidates in turns; a candidate that rejects the input has no figure."""
    able = {name: work for name, work in candidates.items() if _works(work)}
    counts = [max(1, int(TURN_S / _seconds(work, 1))) for work in able.values()]
    best = [float("inf")] * len(able)
    for _ in range(TURNS):
        for position, work in enumerate(able.values()):
            best[position] = min(best[position], _seconds(work, counts[position]))
    figures: Sequence[str] = [
        f"{name} {seconds * 1e6:.2f}".strip() for name, seconds in zip(able, best, strict=True)
    ]
    refused = [f"{name} -" for name in candidates if name not in able]
    print(f"  {title}: {'; '.join([*figures, *refused])}")


def _works(work: Work) -> bool:
    try:
        work()
    except NOT_FAST:
        return False
    return True


def _seconds(work: Work, count: int) -> float:
    """Returns the mean CPU seconds of a run over `count` runs."""
    started = time.thread_time()
    for _ in range(count):
        work()
    return (time.thread_time() - started) / count


if __name__ == "__main__":
    main()
