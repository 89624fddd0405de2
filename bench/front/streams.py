"""Streams beside calls with one answer, and parts of a decoupled model beside Triton's.

The same client sends the same messages, as many in flight, as calls and on one stream, in turns; a
figure is the server's CPU time for each. A decoupled model in the server's process gives parts of
one row, as fast as they are read; its figure is parts a second of CPU time.
"""

import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import torch

import flambeau
from bench.front.frames import FrameClient, frame_client
from bench.front.triton_beside import triton
from bench.peers.peer import Launch
from bench.peers.process_tree import cpu_seconds
from bench.servers.measured_server import measured_server
from model_store.store import ModelStore
from protos import open_inference_pb2 as pb

WIDTH = 4
IN_FLIGHT = 64
REQUESTS, PARTS = 20_000, 50_000
"""Messages and parts of one measurement."""
WARM_UP = 2_000
TRITON_CONFIG = f"""\
max_batch_size: 1
input [ {{ name: "x" data_type: TYPE_FP32 dims: [ {WIDTH} ] }} ]
output [ {{ name: "y" data_type: TYPE_FP32 dims: [ {WIDTH} ] }} ]
model_transaction_policy {{ decoupled: true }}"""


class Parts:
    """As many parts as the first number of its input says."""

    def infer(self, inputs):  # type: ignore[no-untyped-def]
        """Yields the input."""
        x = inputs["x"]
        for _ in range(int(x[0, 0])):
            yield {"y": x}


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamFigures:
    """Medians of the rounds."""

    unary_us: float
    """CPU time of the server for a call with one answer."""
    streamed_us: float
    """For a message of a stream with one answer."""
    ratio: float
    """The median of the ratios inside each round."""
    parts_per_cpu_s: float
    """Parts of one row of a decoupled model, in a second of the server's CPU time."""
    peer_parts_per_cpu_s: float
    """Of Triton's Python backend; NaN where it does not run."""


def measure_streams(rounds: int) -> StreamFigures:
    """Runs both servers and all loads."""
    unary: list[float] = []
    streamed: list[float] = []
    parts: list[float] = []
    peer: list[float] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="flambeau-bench-")))
        store = ModelStore(str(folder))
        x = np.ones((2, WIDTH), np.float32)
        flambeau.publish(
            lambda x: 2 * x, {"x": torch.from_numpy(x)}, name="double", to=store.url,
            artifacts=["onnx"],
        )  # fmt: skip
        flambeau.publish(
            Parts, {"x": x[:1]}, name="parts", to=store.url, process="shared", max_batch_size=1
        )
        server = stack.enter_context(measured_server(store.url, ["double", "parts"]))
        client = stack.enter_context(frame_client(server.grpc))
        client.unary(_asking("double", 1), WARM_UP, IN_FLIGHT)
        for _ in range(rounds):
            before = cpu_seconds(server.pid)
            client.unary(_asking("double", 1), REQUESTS, IN_FLIGHT)
            between = cpu_seconds(server.pid)
            client.streamed(_asking("double", 1), REQUESTS, IN_FLIGHT)
            unary.append((between - before) / REQUESTS * 1e6)
            streamed.append((cpu_seconds(server.pid) - between) / REQUESTS * 1e6)
            parts.append(_parts_per_cpu_s(client, server.pid))
    with triton("parts", "triton_parts.py", TRITON_CONFIG, _ask_one) as found:
        if found is not None:
            with frame_client(found.launch.grpc) as client:
                peer = [_parts_per_cpu_s(client, found.pid) for _ in range(rounds)]
    return StreamFigures(
        unary_us=median(unary),
        streamed_us=median(streamed),
        ratio=median(ours / theirs for ours, theirs in zip(streamed, unary, strict=True)),
        parts_per_cpu_s=median(parts),
        peer_parts_per_cpu_s=median(peer) if peer else float("nan"),
    )


def _parts_per_cpu_s(client: FrameClient, pid: int) -> float:
    before = cpu_seconds(pid)
    client.streamed(_asking("parts", PARTS), 1, 1, answers=PARTS)
    return PARTS / (cpu_seconds(pid) - before)


def _asking(model: str, value: float) -> bytes:
    request = pb.ModelInferRequest(model_name=model)
    request.inputs.add(name="x", datatype="FP32", shape=[1, WIDTH])
    request.raw_input_contents.append(np.full((1, WIDTH), value, np.float32).tobytes())
    return request.SerializeToString()


def _ask_one(launch: Launch) -> None:
    with frame_client(launch.grpc) as client:
        client.streamed(_asking("parts", 1), 1, 1)
