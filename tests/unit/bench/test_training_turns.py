"""Interleaved turns of several trainings: the extent of a step, and the order of the turns."""

import io
import json

import pytest

from bench.training.training_loops import TASKS, Listener, Task, Turns


def _task(rows: int, turn: int) -> Task:
    found = TASKS["tiny-mlp"]
    return Task(found.network, found.rows, rows, 1, epochs=2, turn=turn)


def test_a_turn_is_told_behind_its_steps_and_none_across_two_epochs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("\n" * 6))
    turns = Turns(_task(rows=6, turn=2))
    for _ in range(2 * 6):
        turns.begin_step()
    told = list(map(json.loads, capsys.readouterr().out.splitlines()))
    assert [turn is None for turn in told] == [True, False, False, True, False, False]
    assert all(turn["wall_us"] > 0 for turn in told if isinstance(turn, dict))


def test_a_listener_leaves_out_what_lies_between_two_epochs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = iter([0.0, 3.0, 4.0, 7.0, 100.0, 103.0, 104.0, 107.0])  # starts and ends of steps
    monkeypatch.setattr("bench.training.training_loops.time.perf_counter", lambda: next(clock))
    listener = Listener(_task(rows=2, turn=1))
    for _ in range(2 * 2):
        listener.begin_step()
        listener.end_step()
    assert listener.share == pytest.approx(2 / 8)


def test_a_training_that_nobody_listens_to_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("\n"))
    turns = Turns(_task(rows=2, turn=1))
    turns.begin_step()
    with pytest.raises(SystemExit):
        turns.begin_step()


def test_every_epoch_is_whole_turns() -> None:
    for name, task in TASKS.items():
        assert task.count % task.batch_size == 0, name
        assert task.steps % task.turn == 0, name
