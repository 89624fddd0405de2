"""The ledger of `make e2e-cluster`: it must contain every failure."""

from tests.cluster.ledger import KINDS, Ledger


def test_every_failure_and_every_wrong_answer_is_told() -> None:
    ledger = Ledger()
    first = ledger.phase
    ledger.begin("later")
    ledger.answered(first, "rest", 0.1, retried=2)
    ledger.answered(ledger.phase, "grpc", 0.1, wrong="1 instead of 2")
    ledger.failed(first, "direct", "UNAVAILABLE")
    assert ledger.broken() == ["before: direct: UNAVAILABLE", "later: grpc: 1 instead of 2"]
    head, before, later = ledger.table().splitlines()
    assert head.split() == ["phase", "calls", *KINDS, "envoy", "client", "wrong", "failed", "p99",
                            "ms"]  # fmt: skip
    assert before.split() == ["before", "2", "1", "0", "1", "0", "2", "0", "1", "100"]
    assert later.split() == ["later", "1", "0", "1", "0", "0", "0", "1", "0", "100"]


def test_a_phase_is_over_when_all_kinds_were_answered() -> None:
    ledger = Ledger()
    for kind in KINDS[:-1]:
        ledger.answered(ledger.phase, kind, 0.1)
    assert not ledger.wait_for(ledger.phase, 1, timeout_s=0)
    ledger.answered(ledger.phase, KINDS[-1], 0.1)
    assert ledger.wait_for(ledger.phase, 1, timeout_s=0)


def test_the_99th_percentile_is_by_rank() -> None:
    ledger = Ledger()
    for number in range(200):
        ledger.answered(ledger.phase, "rest", float(number))
    assert ledger.phase.p99_s == 197.0
