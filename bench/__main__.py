"""`make bench`: the raw model, then the served one, each figure beside the raw limit.

Timings of a shared machine are noisy: compare ratios within one run, not figures between runs.
"""

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import uvloop
from safetensors.numpy import load as load_safetensors

from bench.load import Latencies, load_grpc, load_rest
from bench.pinning import CLIENT_CORE, SERVER_CORE, cores_apart, pinned_to
from bench.process_figures import cpu_seconds, resident_mebibytes
from flambeau.commands.store_option import DEFAULT_STORE
from flambeau.commands.up import fill_if_empty
from flambeau.server_process import ServerProcess, server_process
from model_store.golden import golden_rows
from model_store.manifest import Manifest
from model_store.store import ModelStore
from model_store.tensors import encode_raw
from protos import open_inference_pb2 as pb

CONCURRENCIES = (1, 8, 32)
WARM_UP_S = 1.0
RESULTS = Path(__file__).parent / "results" / "latest.json"


def main() -> None:
    """Measures, prints, and writes `bench/results/latest.json`."""
    arguments = _arguments()
    fill_if_empty(arguments.store)
    store = ModelStore(arguments.store)
    manifest = store.manifest(arguments.model, store.versions(arguments.model)[-1])
    artifact = manifest.artifacts_by_speed()[0].name
    print(f"{manifest.model} {manifest.version}, artifact {artifact}, one thread")
    raw = _raw(arguments.store, manifest, artifact)
    limit = max(raw.values())
    for size, rate in raw.items():
        print(f"raw model, batch {size:>2}: {rate:>10,.0f} samples/s")
    rest_request, grpc_request, body = _requests(store, manifest)
    pinned_to(CLIENT_CORE)()
    rows: list[dict[str, Any]] = []
    started = time.perf_counter()
    serve = ["--store", arguments.store, "--model", manifest.model, "--set", "access_log=false"]
    with server_process([*serve, "--set", "log_level=warning"], pinned_to(SERVER_CORE)) as server:
        url = f"http://{server.http}/v2/models/{manifest.model}/infer"
        urllib.request.urlopen(url, body).close()
        start = {
            "cold_start_s": time.perf_counter() - started,
            "resident_mib": resident_mebibytes(server.pid),
        }
        print(f"cold start {start['cold_start_s']:.2f} s, {start['resident_mib']:.0f} MiB resident")
        for clients in CONCURRENCIES:
            for protocol, request in (("rest", rest_request), ("grpc", grpc_request)):
                row = _measure(server, protocol, request, clients, arguments.seconds)
                row["ratio_to_raw"] = row["requests_per_second"] / limit
                rows.append(row)
                _show(row)
        start["resident_mib_after"] = resident_mebibytes(server.pid)
    _write(manifest, artifact, raw, rows, start)
    _say_whether_batches_pay(rows)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--store", default=DEFAULT_STORE)
    parser.add_argument("--model", default="digits")
    parser.add_argument("--seconds", type=float, default=5.0, help="of load for each figure")
    return parser.parse_args()


def _raw(store: str, manifest: Manifest, artifact: str) -> dict[int, float]:
    """Samples a second by batch size, measured by a process on the server's core."""
    command = [sys.executable, "-m", "bench.raw_model", store, manifest.model]
    command += [str(manifest.version), artifact]
    pin = pinned_to(SERVER_CORE)
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, preexec_fn=pin).stdout
    return {int(rows): rate for rows, rate in json.loads(output).items()}


def _requests(store: ModelStore, manifest: Manifest) -> tuple[bytes, bytes, bytes]:
    """One golden row as a whole HTTP request, as a gRPC message, and as a JSON body."""
    golden = golden_rows(load_safetensors(store.read_file(manifest, manifest.golden.file)))
    arrays = {name: array[:1] for name, array in golden.inputs.items()}
    specs = {s.name: s for s in manifest.signature.inputs}
    body = json.dumps(
        {
            "inputs": [
                {"name": n, "datatype": specs[n].datatype, "shape": a.shape, "data": a.tolist()}
                for n, a in arrays.items()
            ]
        }
    ).encode()
    head = (
        f"POST /v2/models/{manifest.model}/infer HTTP/1.1\r\nHost: bench\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    message = pb.ModelInferRequest(model_name=manifest.model)
    for name, array in arrays.items():
        message.inputs.add(name=name, datatype=specs[name].datatype, shape=array.shape)
        message.raw_input_contents.append(encode_raw(specs[name].datatype, array))
    return head.encode() + body, message.SerializeToString(), body


def _measure(
    server: ServerProcess, protocol: str, request: bytes, clients: int, seconds: float
) -> dict[str, Any]:
    """Warms up, then loads; CPU counts only the second part."""

    def load(duration: float) -> Latencies:
        generate, address = (
            (load_rest, server.http) if protocol == "rest" else (load_grpc, server.grpc)
        )
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(generate(address, request, clients, duration))

    load(WARM_UP_S)
    cpu, own_cpu, started = cpu_seconds(server.pid), time.process_time(), time.perf_counter()
    results = load(seconds)
    elapsed = time.perf_counter() - started
    latencies = np.array(results.seconds) * 1000
    count = len(latencies)
    return {
        "protocol": protocol,
        "clients": clients,
        "requests_per_second": count / elapsed,
        "p50_ms": float(np.percentile(latencies, 50)),
        "p99_ms": float(np.percentile(latencies, 99)),
        "server_cpu_us": (cpu_seconds(server.pid) - cpu) / count * 1e6,
        "client_cpu_share": (time.process_time() - own_cpu) / elapsed,
        "failures": results.failures,
    }


def _show(row: dict[str, Any]) -> None:
    print(
        f"{row['protocol']}, {row['clients']:>2} clients: "
        f"{row['requests_per_second']:>8,.0f} requests/s ({row['ratio_to_raw']:.3f} of raw), "
        f"p50 {row['p50_ms']:.2f} ms, p99 {row['p99_ms']:.2f} ms, "
        f"server CPU {row['server_cpu_us']:.0f} µs a request, "
        f"client busy {row['client_cpu_share']:.0%}, failures {row['failures']}"
    )


def _write(
    manifest: Manifest,
    artifact: str,
    raw: dict[int, float],
    rows: list[dict[str, Any]],
    start: dict[str, float],
) -> None:
    document = {
        "model": manifest.model,
        "artifact": artifact,
        "machine": {"cores": os.cpu_count(), "python": platform.python_version(),
                    "server_and_client_on_different_cores": cores_apart()},
        "raw_samples_per_second": raw,
        "raw_limit_samples_per_second": max(raw.values()),
        "start": start,
        "served": rows,
    }  # fmt: skip
    RESULTS.write_text(json.dumps(document, indent=2) + "\n")
    print(f"wrote {RESULTS}")


def _say_whether_batches_pay(rows: list[dict[str, Any]]) -> None:
    for protocol in ("rest", "grpc"):
        rates = {r["clients"]: r["requests_per_second"] for r in rows if r["protocol"] == protocol}
        few, many = min(rates), max(rates)
        print(f"{protocol}: {many} clients get {rates[many] / rates[few]:.1f}x of {few} client")


main()
