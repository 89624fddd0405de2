"""`make bench-copies`: how often a server copies each byte of a large tensor.

One model takes rows of 1 MiB and answers eight numbers, the other the reverse. Each answers
requests of 1 and of 16 rows, in every protocol and shape of a server, while a library that is
loaded before all others (`servers/counted_copies.c`, which needs gcc) counts what each process of
the server copies, beside what the kernel copies to and from sockets. All numbers are 0.5, whose
text in JSON takes the 4 bytes of an FP32. Writes a block of the documentation, in which figures
above `MOST` are bold.
"""

import argparse
import http.client
import json
import os
import struct
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from unittest.mock import patch

import grpc
import numpy as np
import torch

import flambeau
from bench.figures.performance_page import write_block
from bench.figures.results_file import machine
from bench.peers.peer import Floats
from bench.servers.measured_server import end_with_exception, measured_server
from bench.split import split_server
from flambeau.server_process import ServerProcess
from model_store.store import ModelStore
from protos import open_inference_pb2 as pb

ROW, FEW, REPEATS = 262_144, 8, 4
SIZES = (1, 16)
"""MiB, a row each."""
SHAPES = {"one process": (), "`--processes 2`": ("processes=2",), "`isolate`": ("isolate=true",)}
SPLIT = "split, one host"
MOST = {
    ("one process", "takes"): (7, 0.5, 1.5, 1.5), ("one process", "gives"): (2.2, 1, 1, 1),
    ("`--processes 2`", "takes"): (8, 1.5, 2.5, 2.5), ("`--processes 2`", "gives"): (3.2, 2, 2, 2),
    ("`isolate`", "takes"): (8, 1.5, 2.5, 2.5), ("`isolate`", "gives"): (3.2, 2, 2, 2),
    (SPLIT, "takes"): (7, 0.5, 5.5, 5.5), (SPLIT, "gives"): (2.2, 1, 1, 1),
}  # fmt: skip
"""Copies of a byte that docs/reference/performance-processes.md explains, by protocol."""
INFER = "/inference.GRPCInferenceService/ModelInfer"
TAKES, GIVES = "takes", "gives"
COUNTS = struct.Struct("3Q")
SOURCE = Path(__file__).parent / "servers" / "counted_copies.c"
FLAGS = ("-O2", "-ftree-vectorize", "-fno-builtin", "-fno-tree-loop-distribute-patterns")
Ask = Callable[[ServerProcess, str, Floats], None]


def main() -> None:
    """Counts, prints, and writes."""
    argparse.ArgumentParser(prog="python -m bench.copies", description=__doc__).parse_args()
    end_with_exception()
    with tempfile.TemporaryDirectory(prefix="flambeau-bench-") as name:
        folder = Path(name)
        store = folder / "store"
        for model, width, function in (
            (TAKES, ROW, lambda x: x[:, :FEW] * 2),
            (GIVES, FEW, lambda x: x[:, :1] + torch.zeros(ROW)),
        ):
            flambeau.publish(function, {"x": torch.rand(4, width)}, name=model, to=store,
                             artifacts=["onnx"], max_batch_size=max(SIZES))  # fmt: skip
        library = folder / "counted.so"
        subprocess.run(["gcc", *FLAGS, "-shared", "-fPIC", "-o", library, SOURCE], check=True)
        rows = []
        for shape in (*SHAPES, SPLIT):
            counts = folder / shape.replace(" ", "-")
            counts.mkdir()
            loaded = {"LD_PRELOAD": str(library), "FLAMBEAU_COPIES": str(counts)}
            with patch.dict(os.environ, loaded), _server(str(store), shape) as server:
                for model in (TAKES, GIVES):
                    for mib in SIZES:
                        rows.append(_row(server, counts, shape, model, mib))
                        print(rows[-1], flush=True)
    head = f"| shape | tensor | {' | '.join(PROTOCOLS)} | kernel |\n"
    head += "|---|---|" + "---:|" * (len(PROTOCOLS) + 1)
    when = datetime.now(UTC).date().isoformat()
    write_block("copies", "\n".join([f"{when}, {machine()}.\n", head, *rows]))


@contextmanager
def _server(store: str, shape: str) -> Iterator[ServerProcess]:
    with ExitStack() as stack:
        if shape == SPLIT:
            yield stack.enter_context(split_server(ModelStore(store), [TAKES, GIVES])).gateways[0]
        else:
            models = [TAKES, GIVES]
            yield stack.enter_context(measured_server(store, models, "", *SHAPES[shape]))


def _row(server: ServerProcess, counts: Path, shape: str, model: str, mib: int) -> str:
    array = np.full((mib, ROW if model == TAKES else FEW), 0.5, np.float32)
    cells, kernel = [], 0.0
    for ask, most in zip(PROTOCOLS.values(), MOST[shape, model], strict=True):
        ask(server, model, array)  # makes the memory that later requests find
        before = _counted(counts)
        for _ in range(REPEATS):
            ask(server, model, array)
        copied, read, written = (_counted(counts) - before) / (REPEATS * mib * 2**20)
        bold = "**" if copied > most + 0.05 else ""
        cells.append(f"{bold}{copied:.2f}{bold} (≤ {most})")
        kernel = max(kernel, read + written)
    direction = "to the model" if model == TAKES else "from the model"
    return f"| {shape} | {mib} MiB {direction} | {' | '.join(cells)} | {kernel:.1f} |"


def _counted(counts: Path) -> Floats:
    found: Floats = np.sum([COUNTS.unpack(file.read_bytes()) for file in counts.iterdir()], axis=0)
    return found


def _json(server: ServerProcess, model: str, array: Floats) -> None:
    data = f"[{','.join(['0.5'] * array.size)}]"
    tensor = {"name": "x", "datatype": "FP32", "shape": array.shape}
    body = json.dumps({"inputs": [tensor | {"data": [0.5]}]}).replace("[0.5]", data)
    _post(server, model, body.encode(), {})


def _binary(server: ServerProcess, model: str, array: Floats) -> None:
    size = {"binary_data_size": array.nbytes}
    tensor = {"name": "x", "datatype": "FP32", "shape": array.shape, "parameters": size}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    length = {"Inference-Header-Content-Length": str(len(head))}
    _post(server, model, head + array.tobytes(), length)


def _post(server: ServerProcess, model: str, body: bytes, headers: dict[str, str]) -> None:
    connection = http.client.HTTPConnection(server.http)
    connection.request("POST", f"/v2/models/{model}/infer", body, headers)
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()
    answer.read()
    connection.close()


def _raw(server: ServerProcess, model: str, array: Floats) -> None:
    _call(server, model, array, [array.tobytes()])


def _typed(server: ServerProcess, model: str, array: Floats) -> None:
    _call(server, model, array, [])


def _call(server: ServerProcess, model: str, array: Floats, raw: list[bytes]) -> None:
    tensor = pb.ModelInferRequest.InferInputTensor(name="x", datatype="FP32", shape=array.shape)
    if not raw:
        tensor.contents.fp32_contents.extend(array.ravel())
    request = pb.ModelInferRequest(model_name=model, inputs=[tensor], raw_input_contents=raw)
    with grpc.insecure_channel(server.grpc, [("grpc.max_receive_message_length", -1)]) as channel:
        channel.unary_unary(INFER, None, None)(request.SerializeToString())


PROTOCOLS: dict[str, Ask] = {
    "REST JSON": _json, "REST binary": _binary, "gRPC raw": _raw, "gRPC typed": _typed,
}  # fmt: skip

if __name__ == "__main__":
    main()
