"""The whole path through the images: train, publish, serve, ask over REST and gRPC, stop."""

import contextlib
import json
import signal
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import redis

from flambeau import Client
from flambeau.split_processes import valkey_program
from tests.fixtures.servers import Lines
from tests.images.clean_root import CleanRoot

READY_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 60.0
QUEUE = "redis://127.0.0.1:6379"
RECIPE = """
name: smoke
seed: 7
model: {target: training.models.mlp:Mlp, args: {hidden: [8], classes: 2}}
data: {breast_cancer: {}, batch_size: 32}
loss: {cross_entropy: {}}
train: {epochs: 1, threads: 1}
export: [{kind: onnx}]
publish: {model: smoke}
"""
WRITES_OUTSIDE = """
import os, pathlib
assert (os.getuid(), os.getgid()) == (10001, 10001)
for path in ("/opt/flambeau/x", "/etc/x", "/x"):
    try:
        pathlib.Path(path).write_text("")
    except OSError:
        continue
    raise SystemExit(f"{path} could be written")
pathlib.Path("/tmp/x").write_text("")
"""
HAS_NO_TORCH = """
import importlib.util
assert all(importlib.util.find_spec(name) is None for name in ("torch", "onnxruntime"))
"""
CAN_TRACE = "import services.tracing.otlp\n"
"""Import of the setting `trace_endpoint`."""


def check_all(images: Mapping[str, CleanRoot], folder: Path) -> None:
    """Trains with one image, serves with the others.

    Args:
        images: `gateway`, `inference`, `registry` and `trainer`, built.
        folder: for the volumes; made here.

    Raises:
        AssertionError: something is not as it should be; the logs say more.
    """
    models = _volume(folder / "models")
    homes = {name: _volume(folder / name) for name in images}
    for name, image in images.items():
        volumes = {"/var/lib/flambeau": homes[name]}
        program = WRITES_OUTSIDE + (HAS_NO_TORCH if name in ("gateway", "registry") else "")
        program += CAN_TRACE if name in ("gateway", "inference") else ""
        _check_ends_well(image.start(["python", "-c", program], volumes))
    trainer = {"/var/lib/flambeau": homes["trainer"], "/models": models}
    with _running(images["trainer"], trainer, "--store", "/models"):
        _train()
    worker = {"/var/lib/flambeau": homes["inference"], "/models": models}
    gateway = {"/var/lib/flambeau": homes["gateway"]}
    registry = {"/var/lib/flambeau": homes["registry"], "/models": models}
    with (
        _redis(folder),
        _running(images["inference"], worker, "--queue", QUEUE, "--store", "/models"),
        # In one network namespace; the worker's health check wants 8002 where it is.
        _running(images["gateway"], gateway, "--queue", QUEUE, "--metrics-port", "8005"),
        _running(images["registry"], registry, "--queue", QUEUE, "--store", "/models"),
    ):
        _infer()
        shown = _call("http://127.0.0.1:8007/v1/registry/models/smoke")
        assert [one["version"] for one in shown["versions"]] == [1], shown


def _volume(folder: Path) -> Path:
    """A folder that belongs to the images' user, as an engine makes a new volume's."""
    folder.mkdir(parents=True)
    subprocess.run(["chown", "10001:10001", str(folder)], check=True)
    return folder


def _train() -> None:
    job = _call("http://127.0.0.1:8003/v1/jobs", {"recipe": RECIPE})
    with _open(f"http://127.0.0.1:8003/v1/jobs/{job['id']}/events?follow=true") as events:
        last = list(events)[-5:]
    job = _call(f"http://127.0.0.1:8003/v1/jobs/{job['id']}")
    assert job["state"] == "succeeded", (job, last)


def _infer() -> None:
    """One row over REST and over gRPC: the same answer."""
    rows = np.linspace(0.0, 1.0, 30, dtype=np.float32).reshape(1, 30)
    url = "http://127.0.0.1:8000/v2/models/smoke"
    (told,) = _call(url)["inputs"]
    with Client("127.0.0.1:8001") as client:
        over_grpc = client.model("smoke").infer({told["name"]: rows})
    tensor = {**told, "shape": [1, 30], "data": rows.ravel().tolist()}
    answer = _call(f"{url}/infer", {"inputs": [tensor]})
    for output in answer["outputs"]:
        given = np.array(output["data"], np.float32).reshape(output["shape"])
        np.testing.assert_allclose(given, over_grpc[output["name"]], rtol=1e-5)
    print(f"the model answers over REST and gRPC: {answer['outputs'][0]['data']}")


@contextlib.contextmanager
def _running(image: CleanRoot, volumes: Mapping[str, Path], *arguments: str) -> Iterator[None]:
    """The image's service, from its entry point; healthy by its own check, and ended by SIGTERM."""
    process = image.start([*image.stage.entry_point, *arguments], volumes)
    assert process.stderr is not None
    log = Lines(process.stderr)
    try:
        log.wait_for(lambda line: '"ready"' in line, READY_TIMEOUT_S)
        _check_ends_well(image.start(image.stage.health_check, volumes))
        yield
        process.send_signal(signal.SIGTERM)
        assert process.wait(STOP_TIMEOUT_S) == 0, log.all()
    except BaseException:
        process.kill()
        process.wait()
        print("\n".join(log.all()), flush=True)
        raise


def _check_ends_well(process: "subprocess.Popen[str]") -> None:
    output, errors = process.communicate(timeout=READY_TIMEOUT_S)
    assert process.returncode == 0, (output, errors)


@contextlib.contextmanager
def _redis(folder: Path) -> Iterator[None]:
    command = [valkey_program(), "--port", "6379", "--dir", str(folder), "--save", ""]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        log = Lines(server.stdout)
        try:
            log.wait_for(lambda line: "Ready to accept" in line, READY_TIMEOUT_S)
            assert redis.Redis(port=6379).ping()
            yield
        finally:
            server.terminate()
            log.join()  # leaving closes what it reads


def _call(url: str, body: Any = None) -> Any:
    with _open(url, body) as answer:
        return json.loads(answer.read())


def _open(url: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    return urllib.request.urlopen(urllib.request.Request(url, data), timeout=300)
