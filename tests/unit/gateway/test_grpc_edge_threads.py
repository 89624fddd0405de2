"""gRPC's threads interrupt nobody when they are woken; the loop's thread stays as it was."""

import os
import sys
import threading

import pytest

from services.gateway.grpc_threads import become_patient, starting_patient_threads

if sys.platform != "linux":
    pytest.skip("SCHED_BATCH is Linux's", allow_module_level=True)


def policy_of_a_new_thread() -> int:
    policies: list[int] = []
    thread = threading.Thread(target=lambda: policies.append(os.sched_getscheduler(0)))
    thread.start()
    thread.join()
    return policies[0]


def test_threads_started_in_the_block_are_patient() -> None:
    with starting_patient_threads():
        assert policy_of_a_new_thread() == os.SCHED_BATCH
    assert policy_of_a_new_thread() == os.sched_getscheduler(0) == os.SCHED_OTHER


def test_the_policy_returns_after_an_error() -> None:
    with pytest.raises(KeyError), starting_patient_threads():
        raise KeyError
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


def in_a_thread(chosen: int) -> int:
    """The policy of a thread that had one and then became patient."""
    policies: list[int] = []

    def run() -> None:
        os.sched_setscheduler(0, chosen, os.sched_param(0))
        become_patient()
        policies.append(os.sched_getscheduler(0))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return policies[0]


def test_a_policy_that_somebody_chose_stays() -> None:
    assert in_a_thread(os.SCHED_OTHER) == os.SCHED_BATCH
    assert in_a_thread(os.SCHED_IDLE) == os.SCHED_IDLE


def test_a_system_that_forbids_it_only_costs_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "sched_setscheduler", forbidden)
    with starting_patient_threads():
        assert os.sched_getscheduler(0) == os.SCHED_OTHER
