"""Generated requests: valid ones of every datatype and form, and the usual ways to spoil them.

In: a seeded generator of random numbers. Out: `Asked`, which becomes a body or a message.
"""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from flambeau.protocol.tensors import DATATYPES, Array, encode_raw, object_array
from protos import open_inference_pb2 as pb

ECHOED = ("BOOL", "UINT8", "INT8", "INT32", "INT64", "UINT64", "FP16", "FP32", "FP64")
"""Datatypes of the models `echo-int8` and so on: `out_INT8` is `in_INT8`, [-1, -1]."""
HEADER = "inference-header-content-length"
FORMS = ("json", "nested", "binary", "contents", "raw")
_FIELDS = {
    "BOOL": "bool_contents", "INT64": "int64_contents", "UINT64": "uint64_contents",
    "FP32": "fp32_contents", "FP64": "fp64_contents", "BYTES": "bytes_contents",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One inference, before it has a form."""

    model: str
    form: str
    """One of `FORMS`."""
    inputs: tuple[tuple[str, str, Array], ...]
    """Name, datatype and array of each."""
    outputs: tuple[tuple[str, dict[str, Any]], ...] = ()
    """Names and parameters of the outputs asked for."""
    version: str = ""
    id: str = ""
    shape: tuple[int, ...] | None = None
    """The shape that the first input claims; None for its own."""
    fault: str = ""
    """What is wrong with it; empty for nothing."""

    @property
    def over_rest(self) -> bool:
        """True for a body, False for a message."""
        return self.form in ("json", "nested", "binary")

    @property
    def path(self) -> str:
        """The path of the URL."""
        version = f"/versions/{self.version}" if self.version else ""
        return f"/v2/models/{self.model}{version}/infer"

    def body(self) -> tuple[bytes, dict[str, str]]:
        """Returns the body and the headers of a REST request."""
        entries, tail = [], b""
        for place, (name, datatype, array) in enumerate(self.inputs):
            shape = self._shape_of(place, array)
            entry: dict[str, Any] = {"name": name, "datatype": datatype, "shape": shape}
            if self.form == "binary":
                raw = encode_raw(datatype, array) if datatype in DATATYPES else b"1234"
                entry["parameters"] = {"binary_data_size": len(raw)}
                tail += raw
            else:
                entry["data"] = _plain(array if self.form == "nested" else array.ravel())
            entries.append(entry)
        document: dict[str, Any] = {"inputs": entries}
        if self.id:
            document["id"] = self.id
        if self.outputs:
            document["outputs"] = [
                {"name": name, **({"parameters": parameters} if parameters else {})}
                for name, parameters in self.outputs
            ]
        if self.form == "binary":
            document["parameters"] = {"binary_data_output": True}
        text = json.dumps(document).encode()
        return text + tail, {HEADER: str(len(text))} if self.form == "binary" else {}

    def message(self) -> pb.ModelInferRequest:
        """Returns the message of a gRPC request."""
        request = pb.ModelInferRequest(
            model_name=self.model, model_version=self.version, id=self.id
        )
        for place, (name, datatype, array) in enumerate(self.inputs):
            shape = self._shape_of(place, array)
            tensor = request.inputs.add(name=name, datatype=datatype, shape=shape)
            if self.form == "raw":
                raw = encode_raw(datatype, array) if datatype in DATATYPES else b"1234"
                request.raw_input_contents.append(raw)
                continue
            narrow = "uint_contents" if datatype.startswith("U") else "int_contents"
            getattr(tensor.contents, _FIELDS.get(datatype, narrow)).extend(array.ravel().tolist())
        for name, parameters in self.outputs:
            output = request.outputs.add(name=name)
            for key, value in parameters.items():
                if key == "classification":
                    output.parameters[key].int64_param = value
        return request

    def _shape_of(self, place: int, array: Array) -> list[int]:
        return list(array.shape if place or self.shape is None else self.shape)


def _plain(array: Array) -> Any:
    if array.dtype.hasobject:
        return np.vectorize(bytes.decode, otypes=[object])(array).tolist()
    return array.tolist()


def values(chance: random.Random, datatype: str, shape: tuple[int, ...]) -> Array:
    """Returns random values, extremes of the datatype among them."""
    count = int(np.prod(shape))
    dtype = DATATYPES[datatype]
    if datatype == "BYTES":
        return object_array(
            [
                "".join(chance.choices('aé\0\n"\\', k=chance.randrange(5))).encode()
                for _ in range(count)
            ]
        ).reshape(shape)
    if datatype == "BOOL":
        return np.array([chance.random() < 0.5 for _ in range(count)]).reshape(shape)
    if dtype.kind == "f":
        limits = np.finfo(dtype.str)
        usual = [0.0, -0.0, 1.5, float(limits.max), float(limits.tiny), chance.gauss(0, 100)]
        return np.array(chance.choices(usual, k=count), dtype).reshape(shape)
    whole = np.iinfo(dtype.str)
    usual_whole = [0, 1, int(whole.max), int(whole.min), chance.randrange(100)]
    return np.array(chance.choices(usual_whole, k=count), dtype).reshape(shape)


def valid(chance: random.Random) -> Asked:
    """Returns a valid request to one of the models."""
    form = chance.choice(FORMS)
    given_id = chance.choice(["", "", "id-1", "ünï"])
    if chance.random() < 0.4:
        x = np.multiply(values(chance, "FP32", (chance.randrange(1, 9), 4)), np.float32(0.25))
        wanted: tuple[tuple[str, dict[str, Any]], ...] = ()
        if chance.random() < 0.4:
            count = chance.randrange(1, 6)
            x = np.array([chance.sample(range(100), 4) for _ in x], np.float32)
            wanted = (("y", {"classification": count}),)
        return Asked(
            model="linear", form=form, inputs=(("x", "FP32", x),), outputs=wanted, id=given_id,
            version=chance.choice(["", "1"]),
        )  # fmt: skip
    datatype = chance.choice(ECHOED)
    if datatype == "FP16":
        form = chance.choice(("binary", "raw"))
    array = values(chance, datatype, (chance.randrange(1, 4), chance.randrange(1, 5)))
    return Asked(
        model=f"echo-{datatype.lower()}",
        form=form,
        inputs=((f"in_{datatype}", datatype, array),),
        id=given_id,
    )


def spoiled(chance: random.Random, asked: Asked) -> Asked:
    """Returns a request with one of the usual faults."""
    fault = chance.choice(list(_FAULTS))
    return replace(_FAULTS[fault](asked), fault=fault)


def _renamed(asked: Asked) -> Asked:
    (_, datatype, array), *others = asked.inputs
    return replace(asked, inputs=(("z", datatype, array), *others))


def _retyped(asked: Asked) -> Asked:
    name, datatype, _ = asked.inputs[0]
    other = "INT32" if datatype != "INT32" else "FP32"
    return replace(asked, inputs=((name, other, np.ones((1, 4), DATATYPES[other])),))


def _too_many_rows(asked: Asked) -> Asked:
    name, datatype, array = asked.inputs[0]
    return replace(asked, inputs=((name, datatype, np.resize(array, (9, array.shape[1]))),))


_FAULTS: dict[str, Callable[[Asked], Asked]] = {
    "unknown model": lambda asked: replace(asked, model="nope"),
    "unknown version": lambda asked: replace(asked, version="9"),
    "unknown input": _renamed,
    "input twice": lambda asked: replace(asked, inputs=asked.inputs * 2),
    "no inputs": lambda asked: replace(asked, inputs=()),
    "another datatype": _retyped,
    "too many rows": _too_many_rows,
    "unknown output": lambda asked: replace(asked, outputs=(("q", {}),)),
    "shape of more": lambda asked: replace(asked, shape=(1, 1, *asked.inputs[0][2].shape)),
    "too few elements": lambda asked: replace(asked, shape=(2, 100)),
}
