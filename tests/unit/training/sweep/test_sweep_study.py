"""The study of a search: the next trial, and the state after an interruption."""

from pathlib import Path

import pytest

from model_store.metric import better_of
from training.sweep.parameter import parse_parameters
from training.sweep.study import Asked, Study

PARAMETERS = parse_parameters(
    ["optim.adamw.lr=log(1e-4, 1e-1)", "schedule=choice({cosine: {}}, {constant: {}})"]
)
FACTS = {"epochs": 3, "folder": "run", "took_s": 1.5}


def study(
    folder: Path,
    *texts: str,
    metric: str = "val/accuracy",
    seed: int = 0,
    prune: bool = True,
) -> Study:
    return Study(
        folder, better_of(metric), parse_parameters(texts) if texts else PARAMETERS, seed, prune
    )


def ask(of: Study) -> Asked:
    asked = of.ask()
    assert asked is not None
    return asked


def test_trials_are_numbered_and_kept(tmp_path: Path) -> None:
    first = study(tmp_path)
    done, pruned, failed = ask(first), ask(first), ask(first)
    first.done(done, 0.9, FACTS)
    first.pruned(pruned, "worse", {"took_s": 1.0})
    first.failed(failed, "it diverged", {})
    assert not first.room(3)
    assert first.room(4)
    found = study(tmp_path).records()
    assert [(t.number, t.state, t.reason) for t in found] == [
        (1, "done", None),
        (2, "pruned", "worse"),
        (3, "failed", "it diverged"),
    ]
    assert (found[0].value, found[0].epochs, found[0].folder) == (0.9, 3, "run")
    assert found[0].values == done.values
    assert 1e-4 <= done.values["optim.adamw.lr"] <= 1e-1
    assert done.values["schedule"] in ({"cosine": {}}, {"constant": {}})


def test_an_interrupted_trial_is_taken_up_with_its_values_and_counted_once(tmp_path: Path) -> None:
    first = study(tmp_path)
    first.done(ask(first), 0.5, FACTS)
    interrupted = ask(first)
    interrupted.hopeless_after(1, 0.4)
    again = study(tmp_path)
    assert [(t.number, t.state) for t in again.records() if t.state != "waiting"] == [(1, "done")]
    taken_up = ask(again)
    assert (taken_up.number, taken_up.values) == (2, interrupted.values)
    assert not again.room(2)
    again.done(taken_up, 0.6, FACTS)
    assert [(t.number, t.state) for t in study(tmp_path).records()] == [(1, "done"), (2, "done")]


@pytest.mark.parametrize("seed", [0, 2**32 - 1])
def test_a_search_that_goes_on_draws_other_values(seed: int, tmp_path: Path) -> None:
    seen = []
    for _ in range(3):
        one = study(tmp_path, seed=seed)
        asked = ask(one)
        seen.append(asked.values["optim.adamw.lr"])
        one.done(asked, 0.5, FACTS)
    assert len(set(seen)) == 3


def test_the_same_values_are_not_trained_twice(tmp_path: Path) -> None:
    one = study(tmp_path, "optim.accumulate=choice(1, 2)")
    asked = ask(one)
    one.done(asked, 0.7, FACTS)
    trained = 1
    while one.room(8):
        following = one.ask()
        if following is not None:
            trained += 1
            one.failed(following, "it diverged", {})
    records = one.records()
    assert (trained, len(records)) == (2, 8)
    for record in records:
        if record.values == asked.values:
            assert (record.state, record.value, record.folder) == ("done", 0.7, "run")
        elif record.reason != "it diverged":
            number = next(r.number for r in records if r.reason == "it diverged")
            assert (record.state, record.reason) == ("pruned", f"has the values of trial {number}")


@pytest.mark.parametrize(
    ("metric", "good", "bad"), [("val/accuracy", 0.9, 0.1), ("val/loss", 0.1, 0.9)]
)
def test_a_trial_worse_than_the_median_is_hopeless(
    tmp_path: Path, metric: str, good: float, bad: float
) -> None:
    one = study(tmp_path, metric=metric)
    for _ in range(5):
        asked = ask(one)
        for epoch in (1, 2, 3):
            assert not asked.hopeless_after(epoch, good)
        one.done(asked, good, FACTS)
    late = ask(one)
    assert not late.hopeless_after(1, float("nan"))
    assert late.hopeless_after(2, bad)
    assert not late.hopeless_after(2, bad), "what is told again changes nothing"
    patient = ask(study(tmp_path, metric=metric, prune=False))
    assert not patient.hopeless_after(2, bad)


def test_importances_wait_for_some_trials(tmp_path: Path) -> None:
    one = study(tmp_path)
    for _ in range(5):
        assert one.importances() == {}
        asked = ask(one)
        one.done(asked, asked.values["optim.adamw.lr"], FACTS)
    found = one.importances()
    assert set(found) == {"optim.adamw.lr", "schedule"}
    assert sum(found.values()) == pytest.approx(1)
