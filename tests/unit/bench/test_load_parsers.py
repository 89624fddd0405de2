"""Parsing the output of `wrk` and `h2load`; outputs are genuine."""

import pytest

from bench.peers.load import parse_h2load, parse_wrk
from bench.peers.peer import PeerError

WRK = """\
Running 2s test @ http://127.0.0.1:40001/inference
  1 threads and 64 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency    23.10ms    6.41ms  51.10ms   73.00%
    Req/Sec     2.78k   301.22     3.31k    65.00%
  5550 requests in 2.01s, 1.32MB read
Requests/sec:   2761.31
Transfer/sec:    672.10KB
figures {"requests": 5550, "duration_us": 2009915, "p50_us": 23100, "p99_us": 40370, \
"bad_status": 50, "broken": 3}
"""

H2LOAD = """\
starting benchmark...
spawning thread #0: 8 total client(s). Timing-based test with 0s of warm-up time and 2s of main \
duration for measurements.
Warm-up started for thread #0.
progress: 10% of clients started
Warm-up phase is over for thread #0.
Main benchmark duration is started for thread #0.
Main benchmark duration is over for thread #0. Stopping all clients.
Stopped all clients for thread #0

finished in 2.00s, 3188.50 req/s, 484.13KB/s
requests: 1000 total, 1032 started, 1000 done, 997 succeeded, 3 failed, 0 errored, 0 timeout
status codes: 997 2xx, 0 3xx, 0 4xx, 3 5xx
traffic: 121.10KB (124006) total, 12.31KB (12605) headers (space savings 92.50%), \
{kibibytes}KB ({data}) data
                     min         max         mean         sd        +/- sd
time for request:      812us     39.88ms     19.91ms      5.02ms    71.20%
"""


def h2load(data: int) -> str:
    return H2LOAD.replace("{data}", str(data)).replace("{kibibytes}", f"{data / 1024:.2f}")


def log(*milliseconds: int) -> str:
    return "".join(f"1700000000{i:06}\t200\t{ms * 1000}\n" for i, ms in enumerate(milliseconds))


def test_wrk_answers_with_a_bad_status_are_failures_and_not_answers() -> None:
    load = parse_wrk(WRK)
    assert (load.answered, load.failed) == (5500, 53)
    assert load.duration_s == pytest.approx(2.009915)
    assert (load.p50_ms, load.p99_ms) == (23.1, 40.37)


def test_wrk_without_figures_is_an_error_with_its_last_words() -> None:
    with pytest.raises(PeerError, match="unable to connect"):
        parse_wrk("unable to connect to 127.0.0.1:1 Connection refused\n")


def test_wrk_with_bad_answers_only_is_an_error() -> None:
    with pytest.raises(PeerError, match="no right answer"):
        parse_wrk(WRK.replace('"bad_status": 50', '"bad_status": 5550'))


def test_h2load_counts_and_percentiles() -> None:
    times = log(*range(1, 101)) + "1700000000999999\t-1\t9000000\n"
    load = parse_h2load(h2load(997 * 50), times, answer_bytes=50, seconds=2)
    assert (load.answered, load.failed, load.duration_s) == (997, 3, 2)
    assert load.p50_ms == pytest.approx(50.5)
    assert load.p99_ms == pytest.approx(99.01)


def test_h2load_answers_without_a_message_are_failed_calls() -> None:
    """A failed call comes with HTTP status 200; only its message is missing."""
    load = parse_h2load(h2load(600 * 50), log(1), answer_bytes=50, seconds=2)
    assert (load.answered, load.failed) == (600, 400)


def test_h2load_messages_may_differ_a_little_in_length() -> None:
    load = parse_h2load(h2load(997 * 50 - 400), log(1), answer_bytes=50, seconds=2)
    assert (load.answered, load.failed) == (997, 3)


def test_h2load_calls_that_all_failed_are_an_error() -> None:
    with pytest.raises(PeerError, match="no right answer"):
        parse_h2load(h2load(0), log(1), answer_bytes=50, seconds=2)
