"""`python -m bench.json_slices`: event loop time taken by large JSON bodies, by their shape.

In: nothing. Out: a table for docs/adr/0036: each body's size, the CPU time of all slices and of
the longest one, and the peak memory beyond the body. `--mib` sets the size of bodies.
"""

import argparse
import gc
import time
import tracemalloc
from collections.abc import Callable

import numpy as np

from services.errors import ServingError
from services.gateway.edges import rest_codec
from services.gateway.edges.json_bodies.strict_request import RestRequest
from services.gateway.sliced_work import Slices
from services.queueing.records import InferReply, Lane

MIB = 2**20
TURNS = 3
HEAD = '{"inputs":[{"name":"x","datatype":"%s","shape":[%s],"data":'


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=float, default=16)
    size = int(parser.parse_args().mib * MIB)
    print(f"{'body':34} {'MiB':>6} {'all ms':>8} {'slice ms':>8} {'x body':>7}  outcome")
    for title, body in _bodies(size).items():
        _row(title, len(body), lambda body=body: rest_codec.decode(body, None, None))  # type: ignore[misc]
    for title, reply in _replies(size).items():
        _row(title, size, lambda reply=reply: rest_codec.encode(reply, RestRequest(inputs=())))  # type: ignore[misc]


def _bodies(size: int) -> dict[str, bytes]:
    def tensor(datatype: str, item: bytes, claimed: int | None = None) -> bytes:
        count = (size - 100) // (len(item) + 1)
        head = HEAD % (datatype, count if claimed is None else claimed)
        return head.encode() + b"[" + b",".join([item] * count) + b"]}]}"

    def nested(rows: int) -> bytes:
        return (HEAD % ("INT32", f"{rows},1")).encode() + b"[%b]}]}" % b",".join([b"[1]"] * rows)

    return {
        "numbers of FP32": tensor("FP32", b"0.1234567"),
        "numbers of FP32, 17 digits": tensor("FP32", b"0.12345678901234567"),
        "digits of INT8": tensor("INT8", b"1"),
        "digits of FP64": tensor("FP64", b"1"),
        "digits of BOOL": tensor("BOOL", b"true"),
        "numbers beyond 64 bits": tensor("FP32", b"99999999999999999999"),
        "nested ones": nested(size // 4),
        "texts of nothing": tensor("BYTES", b'""'),
        "texts of 2": tensor("BYTES", b'"ab"'),
        "texts of escapes": tensor("BYTES", b'"\\"\\\\\\n"'),
        "one text": tensor("BYTES", b'"%b"' % (b"a" * (size - 200))),
        "one text of escapes": tensor("BYTES", b'"%b"' % (b"\\u00e9" * (size // 6 - 40))),
        "[], without an end": tensor("FP32", b"[]"),
        "zeros of a wrong shape": tensor("FP32", b"0", 4),
        "a list in a list in a list": (HEAD % ("FP32", 1)).encode() + b"[" * size,
        "members": b"{%b}" % b",".join(b'"%07d":1' % n for n in range(size // 12)),
        "inputs": b'{"inputs":[%b]}' % b",".join([b"{}"] * (size // 3)),
        "a shape": b'{"inputs":[{"name":"x","datatype":"FP32","shape":[%b]}]}'
        % (b"1," * (size // 2)),
        "an id": b'{"id":"%b","inputs":[]}' % (b"a" * size),
        "an id of escapes": b'{"id":"%b","inputs":[]}' % (b"\\n" * (size // 2)),
        "escaped quotation marks, no end": b'{"id":"%b' % (b'\\"' * (size // 2)),
        "spaces": b" " * size,
        "inputs below the limit": b'{"inputs":[%b]}'
        % b",".join([b'{"name":"x","datatype":"FP32","shape":[1],"data":[1]}'] * 4000),
        "outputs below the limit": b'{"inputs":[],"outputs":[%b]}'
        % b",".join([b'{"name":"y"}'] * 8000),
        "parameters below the limit": b'{"inputs":[],"parameters":{%b}}'
        % b",".join(b'"p%d":1' % n for n in range(16_000)),
        "lists below the limit": b"[%b]" % b",".join([b"[]"] * 8000),
        "many small data": b'{"inputs":[%b]}'
        % b",".join([b'{"data":[%b]}' % (b"1," * 130)] * min(20_000, size // 300)),
        "32 KiB of []": b"[%b]" % b",".join([b"[]"] * 10_000),
        "32 KiB of [] as data": (HEAD % ("FP32", 1)).encode()
        + b"[%b]}]}" % b",".join([b"[]"] * 10_000),
        "32 KiB of digits": (HEAD % ("FP32", 1)).encode() + b"[%b]}]}" % b",".join([b"1"] * 16_000),
    }


def _replies(size: int) -> dict[str, InferReply]:
    outputs = {
        "answer of FP32": np.random.default_rng(0).standard_normal(size // 12).astype("f4"),
        "answer of texts": np.array([b"ab"] * (size // 8), object),
        "answer of one text": np.array([b"a" * size], object),
    }
    return {
        title: InferReply(
            lane=Lane("m", 1),
            outputs={"y": array},
            datatypes={"y": "BYTES" if array.dtype.hasobject else "FP32"},
            batch_rows=1,
            queue_s=0.0,
            execution_s=0.0,
        )
        for title, array in outputs.items()
    }


def _row(title: str, size: int, start: Callable[[], object]) -> None:
    longest, total, outcome = [], [], ""
    for _ in range(TURNS):
        slices, outcome = _run(start)
        longest.append(max(slices))
        total.append(sum(slices))
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    _run(start)
    peak = tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()
    print(
        f"{title:34} {size / MIB:6.2f} {min(total) * 1e3:8.1f} {min(longest) * 1e3:8.2f} "
        f"{peak / size:7.2f}  {outcome[:70]}",
        flush=True,
    )


def _run(start: Callable[[], object]) -> tuple[list[float], str]:
    """Returns the CPU seconds of each slice, and the outcome."""
    gc.collect()
    times: list[float] = []
    work: Slices[object] | None = None
    while True:
        began = time.thread_time()
        try:
            if work is None:
                found = start()
                if not hasattr(found, "send"):
                    return [*times, time.thread_time() - began], "read at once"
                work = found  # type: ignore[assignment]
            else:
                next(work)
        except StopIteration:
            return [*times, time.thread_time() - began], "done"
        except ServingError as error:
            return [*times, time.thread_time() - began], str(error)
        times.append(time.thread_time() - began)


if __name__ == "__main__":
    main()
