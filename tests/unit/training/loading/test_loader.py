"""Batches: the same from any step, in any number of processes, and divided among ranks."""

import multiprocessing
import subprocess
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tests.unit.training import padded_texts, row_sets
from tests.unit.training.padded_texts import text_recipe, text_splits
from tests.unit.training.recipes import recipe, splits
from tests.unit.training.row_sets import lazy_document
from training.datasets import Split, Splits, load_splits
from training.distributed.ranks import Ranks
from training.errors import DataError, RecipeError
from training.loading.batch import TrainingBatch
from training.loading.loader import Loader
from training.recipe.recipe import Recipe


def weigh(inputs: dict[str, np.ndarray], labels: np.ndarray, often: int) -> np.ndarray:
    return np.where(labels == often, 1.0, 0.0)


def epoch_of(chosen: Recipe, data: Splits, epoch: int = 0, first: int = 0) -> list[TrainingBatch]:
    loader = Loader(data, chosen)
    found = [batch for window in loader.windows(epoch, first) for batch in window]
    loader.close()
    return found


def assert_equal(found: list[TrainingBatch], expected: list[TrainingBatch]) -> None:
    assert len(found) == len(expected) > 0
    for one, other in zip(found, expected, strict=True):
        assert one.rows.tolist() == other.rows.tolist()
        assert all(map(torch.equal, one.inputs, other.inputs))
        assert torch.equal(one.labels, other.labels)


def lazy(data: str = "places", **changes: Any) -> tuple[Recipe, Splits]:
    chosen = Recipe.model_validate(lazy_document(data, **changes))
    return chosen, load_splits(chosen)


STREAM = {"data": "stream", "train": {"steps_per_epoch": 5}}


def test_arrays_come_in_the_order_of_the_seed_and_the_epoch_alone() -> None:
    chosen, data = recipe(optim={"accumulate": 2}), splits(rows=70)
    loader = Loader(data, chosen)
    windows = list(loader.windows(3))
    assert [[len(batch.rows) for batch in window] for window in windows] == [
        [16, 16],
        [16, 16],
        [6],
    ]
    assert (loader.steps, loader.rows) == (3, 70)
    order = np.random.default_rng((chosen.seed, 3)).permutation(70)
    for number, batch in enumerate(batch for window in windows for batch in window):
        rows = order[number * 16 : number * 16 + 16]
        assert batch.rows.tolist() == rows.tolist()
        assert (batch.inputs[0].numpy() == data.train.inputs["image"][rows]).all()
        assert (batch.labels.numpy() == data.train.labels[rows]).all()
    assert loader.waited_s > 0


@pytest.mark.parametrize("changes", [{}, STREAM])
def test_workers_change_no_bit_and_any_step_can_be_the_first(changes: dict[str, Any]) -> None:
    chosen, data = lazy(**changes)
    expected = [epoch_of(chosen, data, epoch) for epoch in (0, 1)]
    assert_equal(epoch_of(chosen, data, 1, first=2), expected[1][4:])
    several = chosen.data.model_copy(update={"workers": 2})
    loader = Loader(data, chosen.model_copy(update={"data": several}))
    for epoch, first in ((0, 1), (1, 0), (0, 2)):  # on, and back again
        found = [batch for window in loader.windows(epoch, first) for batch in window]
        assert_equal(found, expected[epoch][2 * first :])
    loader.close()


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("changes", [{}, STREAM])
def test_ranks_divide_the_batches_of_one(changes: dict[str, Any], world: int) -> None:
    chosen, data = lazy(**changes)
    whole = epoch_of(chosen, data)
    loaders = [Loader(load_splits(chosen), chosen, Ranks(rank, world)) for rank in range(world)]
    parts = [[b for window in each.windows(0) for b in window] for each in loaders]
    for batch, *shares in zip(whole, *parts, strict=True):
        for rank, share in enumerate(shares):
            if not share.counts:
                assert rank >= len(batch.rows), "who has no row runs another's along"
                continue
            assert share.rows.tolist() == batch.rows[rank::world].tolist()
            assert torch.equal(share.labels, batch.labels[rank::world])
            if changes:  # the other data set's rows depend on what is read with them
                assert torch.equal(share.inputs[0], batch.inputs[0][rank::world])


def test_a_row_that_cannot_be_read_is_named_by_a_worker_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Broken(row_sets.Places):
        def __getitem__(self, place: int) -> row_sets.Row:
            if place == 30 and len(self.read) > row_sets.ROWS:
                raise OSError("no such image")
            return super().__getitem__(place)

    found = {**row_sets.places(0), "train": Broken(0, row_sets.ROWS)}
    monkeypatch.setattr(row_sets, "broken", lambda seed: found, raising=False)
    chosen, data = lazy("broken")
    several = chosen.data.model_copy(update={"workers": 1})
    with pytest.raises(DataError, match=r"^tests.*'train': row 30 cannot be read: OSError"):
        epoch_of(chosen.model_copy(update={"data": several}), data)


def test_a_worker_outlives_a_sigterm_that_its_parent_did_not_send() -> None:
    chosen, data = lazy()
    several = chosen.data.model_copy(update={"workers": 1})
    loader = Loader(data, chosen.model_copy(update={"data": several}))
    before = children()
    windows = loader.windows(0)
    next(windows)
    try:
        (worker,) = children() - before
        subprocess.run(["kill", "-TERM", str(worker)], check=True)
        assert len(list(windows)) == loader.steps - 1
        assert worker in children()
    finally:
        loader.close()
    assert worker not in children()


def test_a_worker_ends_at_once_with_a_sigterm_of_its_parent() -> None:
    """Without it, the worker would go on until the loader is closed."""
    chosen, data = lazy()
    several = chosen.data.model_copy(update={"workers": 1})
    loader = Loader(data, chosen.model_copy(update={"data": several}))
    before = children()
    next(loader.windows(0))
    try:
        (worker,) = (one for one in multiprocessing.active_children() if one.pid not in before)
        worker.terminate()
        worker.join(20)
        assert worker.exitcode == 0
    finally:
        loader.close()


def children() -> set[int]:
    """Processes that Python code here has started and not seen end."""
    return {process.pid for process in multiprocessing.active_children() if process.pid}


def test_classes_are_balanced_and_weights_decide() -> None:
    data = splits(rows=300)
    labels = np.array([0] * 280 + [1] * 15 + [2] * 5)
    data = Splits(Split(data.train.inputs, labels), data.validation, data.test)
    batches = epoch_of(recipe(data={"target": "u:u", "sampler": "balanced"}), data)
    found = np.bincount(np.concatenate([batch.labels for batch in batches]))
    assert abs(found - 100).max() < 45
    target = f"{__name__}:weigh"
    weighted = {"weighted": {"target": target, "args": {"often": 2}}}
    batches = epoch_of(recipe(data={"target": "u:u", "sampler": weighted}), data)
    assert all((batch.labels == 2).all() for batch in batches)


def test_batches_of_like_length_are_cut_to_their_longest_row() -> None:
    sampler = {"target": "u:u", "sampler": {"bucketed": {"window": 9}}, "batch_size": 8}
    data, chosen = text_splits(), text_recipe(data=sampler)
    batches = epoch_of(chosen, data)
    rows = np.concatenate([batch.rows for batch in batches])
    assert sorted(rows) == list(range(70))
    lengths = data.train.inputs["mask"].sum(axis=1)
    for batch in batches:
        longest = lengths[batch.rows].max()
        assert [tuple(t.shape) for t in batch.inputs] == [(len(batch.rows), longest)] * 2
        assert (batch.inputs[1].sum(dim=1).numpy() == lengths[batch.rows]).all()
    cells = sum(batch.inputs[0].numel() for batch in batches)
    assert cells < 0.75 * 70 * padded_texts.LONGEST
    padding = {**padded_texts.PADDING, "static": True}
    static = epoch_of(text_recipe(data=sampler, padding=padding), data)
    assert {batch.inputs[0].shape[1] for batch in static} == {4, 8, 12}


@pytest.mark.parametrize("outputs", [["each", "logits"], ["logits", "each"]])
def test_labels_are_cut_where_the_first_output_has_a_length(outputs: list[str]) -> None:
    sampler = {"target": "u:u", "sampler": "bucketed", "batch_size": 8}
    model = {"target": "u:u", "outputs": outputs}
    data = text_splits()
    labels = (data.train.inputs["tokens"] % 3).astype(np.int64)
    data = replace(data, train=Split(data.train.inputs, labels))
    for batch in epoch_of(text_recipe(data=sampler, model=model), data):
        length = batch.inputs[0].shape[1] if outputs[0] == "each" else padded_texts.LONGEST
        assert batch.labels.shape == (len(batch.rows), length)


def test_an_epoch_of_some_steps_takes_the_first_rows_of_its_order() -> None:
    chosen = recipe(train={"steps_per_epoch": 2}, optim={"accumulate": 2})
    whole = epoch_of(recipe(optim={"accumulate": 2}), splits())
    assert_equal(epoch_of(chosen, splits()), whole[:4])
    with pytest.raises(RecipeError, match="steps_per_epoch is 4, and 80 rows make 3 steps"):
        Loader(splits(), recipe(train={"steps_per_epoch": 4}, optim={"accumulate": 2}))


@pytest.mark.parametrize(
    ("sampler", "words"),
    [
        ("balanced", "gives a stream, which decides the order itself; take plain"),
        ("bucketed", "gives a stream"),
    ],
)
def test_a_stream_has_an_order_of_its_own(sampler: str, words: str) -> None:
    chosen, data = lazy("stream", train=STREAM["train"])
    part = recipe(data={"target": "u:u", "sampler": sampler, "batch_size": 4}).data
    with pytest.raises(RecipeError, match=words):
        Loader(data, chosen.model_copy(update={"data": part}))


def test_a_sampler_says_what_it_must_know() -> None:
    bucketed = {"target": "u:u", "sampler": "bucketed"}
    with pytest.raises(RecipeError, match="bucketed needs padding, which"):
        Loader(splits(), recipe(data=bucketed))
    blind = {"inputs": {"tokens": 1}, "buckets": [12]}
    with pytest.raises(RecipeError, match=r"bucketed needs padding\.mask or padding\.lengths"):
        Loader(text_splits(), text_recipe(data=bucketed, padding=blind))
    chosen, data = lazy(data="places")
    balanced = chosen.data.model_copy(
        update={"sampler": recipe(data={"target": "u:u", "sampler": "balanced"}).data.sampler}
    )
    with pytest.raises(RecipeError, match="an attribute `labels`"):
        Loader(data, chosen.model_copy(update={"data": balanced}))
