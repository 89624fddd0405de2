"""`make bench-front`: what the front door costs, beside Triton where it runs.

Streams beside calls with one answer, and parts of decoupled models; sequences; tensors of 1, 16 and
64 MB each way; models that are loaded, unloaded and swapped under load. Prints verdicts and writes
`bench/results/front.json`.
"""

import argparse
import tempfile
from dataclasses import asdict
from typing import Any

from bench.figures.results_file import write_results
from bench.figures.verdicts import Verdict, at_least, at_most, short
from bench.front import sequences
from bench.front.lifecycle import measure_lifecycle
from bench.front.streams import StreamFigures, measure_streams
from bench.front.tensors import measure_tensors
from bench.servers.measured_server import end_with_exception
from bench.servers.pinning import add_cores_option, become_client

PARTS = ("streams", "sequences", "tensors", "lifecycle")
LEAST_CYCLES = 10


def main() -> None:
    """Measures, prints, and writes, unless some parts are left out."""
    end_with_exception()
    given = _arguments()
    become_client(pinned=given.pinned)
    document: dict[str, Any] = {}
    found: list[Verdict] = []
    if "streams" in given.only:
        streams = measure_streams(given.rounds)
        document["streams"] = asdict(streams)
        found += verdicts(streams)
    if "sequences" in given.only:
        steps = sequences.measure_sequences(given.rounds, given.seconds)
        document["sequences"] = asdict(steps)
        found += sequences.verdicts(steps)
    if "tensors" in given.only:
        with tempfile.TemporaryDirectory(prefix="flambeau-bench-") as folder:
            tensors = measure_tensors(folder, given.rounds, given.tensor_seconds)
        document["tensors"] = [asdict(one) for one in tensors]
        found += [verdict for one in tensors for verdict in one.verdicts()]
    if "lifecycle" in given.only:
        cycles = measure_lifecycle(given.cycles)
        document["lifecycle"] = asdict(cycles)
        found += cycles.verdicts()
        for reason in cycles.reasons:
            print(f"  failed: {reason}")
    if given.only == PARTS:
        write_results("front", document, found)
    else:
        print("\n".join(verdict.line() for verdict in found))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.front", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="of which the medians are taken")
    parser.add_argument("--seconds", type=int, default=4, help="of each load of sequences")
    parser.add_argument("--tensor-seconds", type=float, default=1, help="of each size and way")
    parser.add_argument("--cycles", type=_cycles, default=1000, help="of load, unload and swap")
    parser.add_argument(
        "--only", type=_parts, default=PARTS, metavar=",".join(PARTS),
        help="measure some parts, and write nothing",
    )  # fmt: skip
    add_cores_option(parser)
    return parser.parse_args()


def _parts(text: str) -> tuple[str, ...]:
    asked = text.split(",")
    if unknown := set(asked) - set(PARTS):
        raise argparse.ArgumentTypeError(
            f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}"
        )
    return tuple(part for part in PARTS if part in asked)


def _cycles(text: str) -> int:
    if int(text) < LEAST_CYCLES:
        raise argparse.ArgumentTypeError(f"give at least {LEAST_CYCLES}")
    return int(text)


def verdicts(streams: StreamFigures) -> list[Verdict]:
    """Returns the figures beside their targets."""
    what = f"CPU of a message of a stream ÷ of a call ({short(streams.unary_us)} µs)"
    peer = f"parts ÷ Triton's Python backend ({short(streams.peer_parts_per_cpu_s)})"
    return [
        at_most(what, streams.ratio, 1.1),
        at_least("parts in a second of CPU time", streams.parts_per_cpu_s, 50_000),
        at_least(peer, streams.parts_per_cpu_s / streams.peer_parts_per_cpu_s, 3),
    ]


if __name__ == "__main__":
    main()
