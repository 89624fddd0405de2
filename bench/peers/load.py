"""External clients: `wrk` for REST, `h2load` for gRPC, each a process on the client's cores.

In: canned requests. Out: the number of responses, their rate and the failures. Both are closed
loops: each client sends its next request after the response to the last one.
"""

import json
import re
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from bench.peers.peer import Ask, PeerError
from bench.servers.pinning import CLIENT_CORE, pinned_to

SCRIPT = Path(__file__).with_name("wrk_request.lua")
MOST_CONNECTIONS = 8
"""Connections of h2load; more clients share them as streams, as gRPC channels do."""
SLOWEST_ANSWER_S = 30
GRPC_HEADERS = ("content-type: application/grpc", "te: trailers")
PREFIX_BYTES = 5
"""Prefix of each gRPC message: a flag and its length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Figures seen by a client."""

    answered: int
    """Requests with a success status."""
    failed: int
    duration_s: float
    p50_ms: float
    p99_ms: float
    client_cpu_s: float = 0.0
    """User and system time of the client."""


class NothingAnsweredError(PeerError):
    """No request got a correct response during the load."""


def clients_at_hand() -> None:
    """Checks that both programs are installed.

    Raises:
        PeerError: a program is missing; the message names its Debian package.
    """
    for program, package in (("wrk", "wrk"), ("h2load", "nghttp2-client")):
        if shutil.which(program) is None:
            raise PeerError(f"{program} is not installed: apt-get install {package}")


def load_rest(address: str, asks: Sequence[Ask], clients: int, seconds: int) -> Load:
    """Sends requests in rotation over `clients` connections, one request at a time on each.

    Raises:
        PeerError: wrk printed no figures; `NothingAnsweredError` if no request was answered.
    """
    with tempfile.NamedTemporaryFile(prefix="wrk-") as file:
        for ask in asks:
            request = http_request(address, ask)
            file.write(b"%d\n%b" % (len(request), request))
        file.flush()
        options = ["-t1", f"-c{clients}", f"-d{seconds}s"]
        options += ["--timeout", f"{SLOWEST_ANSWER_S}s", "--script", str(SCRIPT)]
        output, cpu_s = _run(["wrk", *options, f"http://{address}", "--", file.name])
        return replace(parse_wrk(output), client_cpu_s=cpu_s)


def http_request(address: str, ask: Ask) -> bytes:
    """Returns one whole POST request."""
    headers = {"Host": address, **ask.headers, "Content-Length": str(len(ask.body))}
    lines = [f"POST {ask.path} HTTP/1.1", *(f"{name}: {text}" for name, text in headers.items())]
    return "\r\n".join((*lines, "", "")).encode() + ask.body


def load_grpc(address: str, ask: Ask, clients: int, seconds: int, answer_bytes: int) -> Load:
    """Calls over at most `MOST_CONNECTIONS` connections, with `clients` concurrent calls in all.

    Args:
        address: host:port.
        ask: call to repeat.
        clients: calls in flight; divisible by `MOST_CONNECTIONS` if larger than it.
        seconds: duration.
        answer_bytes: size of a correct response, its prefix included. A failed call ends with HTTP
            status 200 and no message, so that only the missing bytes reveal it.

    Raises:
        PeerError: h2load printed no figures; `NothingAnsweredError` if no request was answered.
    """
    connections = min(clients, MOST_CONNECTIONS)
    with tempfile.TemporaryDirectory(prefix="h2load-") as folder:
        body, log = Path(folder) / "message", Path(folder) / "log"
        body.write_bytes(grpc_message(ask))
        options = ["-t1", f"-c{connections}", f"-m{clients // connections}"]
        options += ["-D", f"{seconds}s", "-d", str(body), f"--log-file={log}"]
        options += [part for header in GRPC_HEADERS for part in ("-H", header)]
        summary, cpu_s = _run(["h2load", *options, f"http://{address}{ask.path}"])
        load = parse_h2load(summary, log.read_text(), answer_bytes, seconds)
        return replace(load, client_cpu_s=cpu_s)


def grpc_message(ask: Ask) -> bytes:
    """Returns a call's message with its prefix: an uncompressed flag, and the length."""
    return b"\0" + len(ask.body).to_bytes(PREFIX_BYTES - 1, "big") + ask.body


def parse_wrk(output: str) -> Load:
    """Parses the line that our script prints.

    Raises:
        PeerError: the line has no figures; `NothingAnsweredError` if no request was answered.
    """
    line = next((x for x in output.splitlines() if x.startswith("figures ")), None)
    if line is None:
        raise PeerError(f"wrk printed no figures: {_last_lines(output)}")
    figures: Mapping[str, int] = json.loads(line.removeprefix("figures "))
    answered = figures["requests"] - figures["bad_status"]
    if answered <= 0:
        raise NothingAnsweredError(f"wrk got no right answer: {line}")
    return Load(
        answered=answered,
        failed=figures["bad_status"] + figures["broken"],
        duration_s=figures["duration_us"] / 1e6,
        p50_ms=figures["p50_us"] / 1e3,
        p99_ms=figures["p99_us"] / 1e3,
    )


def parse_h2load(summary: str, log: str, answer_bytes: int, seconds: int) -> Load:
    """Parses h2load's summary and log; log columns: start (µs), HTTP status, duration (µs).

    Raises:
        PeerError: they hold no figures; `NothingAnsweredError` if no request was answered.
    """
    counts = re.search(r"^requests: .*?(\d+) succeeded, (\d+) failed", summary, re.MULTILINE)
    data = re.search(r"^traffic: .*\((\d+)\) data$", summary, re.MULTILINE)
    if not counts or not data:
        raise PeerError(f"h2load printed no figures: {_last_lines(summary)}")
    succeeded, failed = int(counts[1]), int(counts[2])
    # Numbers in text vary a little in length between responses: hence the rounding.
    with_message = round(int(data[1]) / answer_bytes)
    without = succeeded - with_message if with_message < 0.99 * succeeded else 0
    rows = [line.split("\t") for line in log.splitlines()]
    times = np.array([int(row[2]) for row in rows if row[1] == "200"]) / 1e3
    if succeeded - without <= 0 or not times.size:
        raise NothingAnsweredError(
            f"h2load got no right answer: {counts[0]}, {data[1]} bytes of data"
        )
    return Load(
        answered=succeeded - without,
        failed=failed + without,
        duration_s=seconds,
        p50_ms=float(np.percentile(times, 50)),
        p99_ms=float(np.percentile(times, 99)),
    )


def _run(command: Sequence[str]) -> tuple[str, float]:
    """Returns a client's output, and the seconds of CPU time that it took."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=pinned_to(CLIENT_CORE),
    )
    if done.returncode != 0:
        raise PeerError(f"{command[0]} failed: {_last_lines(done.stdout)}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return done.stdout, cpu_s


def _last_lines(output: str) -> str:
    return " / ".join(output.strip().splitlines()[-3:]) or "no output"
