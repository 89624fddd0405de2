"""`make bench-front`: streams beside calls with one answer, and beside Triton; sequences.

Prints verdicts and writes `bench/results/front.json`.
"""

import argparse
from dataclasses import asdict

from bench.figures.results_file import write_results
from bench.figures.verdicts import Verdict, at_least, at_most, short
from bench.front import sequences
from bench.front.streams import StreamFigures, measure_streams
from bench.servers.measured_server import end_with_exception
from bench.servers.pinning import add_cores_option, become_client


def main() -> None:
    """Measures, prints, and writes."""
    end_with_exception()
    parser = argparse.ArgumentParser(prog="python -m bench.front", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="of which the medians are taken")
    parser.add_argument("--seconds", type=int, default=4, help="of each load of sequences")
    add_cores_option(parser)
    given = parser.parse_args()
    become_client(pinned=given.pinned)
    streams = measure_streams(given.rounds)
    steps = sequences.measure_sequences(given.rounds, given.seconds)
    document = {"streams": asdict(streams), "sequences": asdict(steps)}
    write_results("front", document, [*verdicts(streams), *sequences.verdicts(steps)])


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
