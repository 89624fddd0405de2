"""Promotion of a trained version: the conditions for moving an alias."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import nn

from model_store.artifact_kinds import STORED_KINDS, StoredKind
from model_store.errors import ConflictError
from model_store.manifest import Artifact, Manifest
from model_store.store import ModelStore
from tests.fixtures.signatures import one_to_one
from tests.fixtures.store_versions import artifact_in, draft_in
from tests.unit.training.recipes import recipe
from training.datasets import Split, Splits
from training.errors import IsolationError
from training.loop.evaluation import evaluate
from training.loop.loop import Trained
from training.loop.train_state import TrainState
from training.metrics.confidence import paired_interval
from training.network.runner import module_runner
from training.promotion import Promotion, promote
from training.recipe.parts.promotion_condition import Condition, parse_condition
from training.recipe.parts.promotion_rule import PromotePart
from training.recipe.recipe import Recipe
from training.reporting.report import LiveComparison
from training.verification import live_comparison
from training.verification.live_comparison import compare_with_live
from training.verification.verify import Reference

ROWS, CLASSES = 40, 10
SIGNATURE = one_to_one((1, 8, 8), (CLASSES,), names=("image", "logits"), rows=64)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("test/accuracy >= live", Condition(metric="test/accuracy", strict=False)),
        (" test/exact_match>live ", Condition(metric="test/exact_match", strict=True)),
        (
            "test/accuracy >= live - 0.5pp",
            Condition(metric="test/accuracy", strict=False, margin=-0.005),
        ),
        ("test/accuracy > live+1 pp", Condition(metric="test/accuracy", strict=True, margin=0.01)),
        ("test/accuracy>=live-.01", Condition(metric="test/accuracy", strict=False, margin=-0.01)),
        ("test/loss < live - 1e-3", Condition(metric="test/loss", strict=True, margin=-0.001)),
        ("test/accuracy>=0.9", Condition(metric="test/accuracy", strict=False, against=0.9)),
        ("test/f1 > 90 %", Condition(metric="test/f1", strict=True, against=0.9)),
        ("test/rmse <= 2.5", Condition(metric="test/rmse", strict=False, against=2.5)),
        ("test/r2 > -.5", Condition(metric="test/r2", strict=True, against=-0.5)),
        ("test/accuracy > guess", Condition(metric="test/accuracy", strict=True, against="guess")),
        (
            "test/accuracy >= guess + 5pp",
            Condition(metric="test/accuracy", strict=False, against="guess", margin=0.05),
        ),
    ],
)
def test_a_condition_is_read_and_written(text: str, expected: Condition) -> None:
    assert parse_condition(text) == expected
    assert parse_condition(str(expected)) == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("frist", "did you mean 'first'?"),
        ("test/accuracy", "a comparison with the live version, such as test/accuracy >="),
        ("tets/accuracy >= live", "no metric 'tets/accuracy' (did you mean 'test/accuracy'?)"),
        (
            "val/loss <= live",
            "no metric 'val/loss' (known: test/accuracy, test/exact_match, test/f1, test/loss,",
        ),
        ("test/accuracy => live", "test/accuracy is better when higher; write >= or >"),
        ("test/loss >= live", "test/loss is better when lower; write <= or <"),
        ("test/accuracy >= liev", "compare with live, guess or a number, not with 'liev'"),
        ("test/accuracy >= 90", "never reaches 90; write 0.9 or 90%"),
        ("test/accuracy >= -0.1", "never reaches -0.1"),
        ("test/rmse <= 2%", "'%' is not a unit of test/rmse; give a plain number"),
        ("test/accuracy <= 0.9", "test/accuracy is better when higher; write >= or >"),
        ("test/loss < guess", "a guess has no loss"),
        ("test/accuracy >= 0.9 - 0.1", "or with a number, such as test/accuracy >= 90%"),
        ("test/accuracy >= 0.9 and", "write first, always, or a comparison"),
        ("test/accuracy >= 0.9 or first", "write first, always, or a comparison"),
        ("always and test/accuracy >= 0.9", "always says nothing beside other conditions"),
        ("first and test/accuracy >= live", "'test/accuracy >= live' and 'first' do not go"),
        ("test/loss <= live and test/accuracy >= live", "do not go together; keep one"),
        (
            "test/accuracy >= live - 5%",
            "'%' is not a unit of test/accuracy; give percentage points",
        ),
        ("test/loss <= live + 1pp", "'pp' is not a unit of test/loss; give none"),
        ("test/accuracy >= live - 101pp", "a margin of 101pp is more than everything"),
        ("test/accuracy >= live - 5", "a margin of 500pp is more than everything"),
    ],
)
def test_a_bad_condition_says_what_to_write(text: str, reason: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(reason)):
        PromotePart.model_validate({"if": text})


@pytest.mark.parametrize(
    ("text", "new", "live", "met"),
    [
        ("test/accuracy >= live", 0.9, 0.9, True),
        ("test/accuracy > live", 0.9, 0.9, False),
        ("test/accuracy >= live - 0.5pp", 0.975, 0.98, True),
        ("test/accuracy >= live - 0.5pp", 0.9749, 0.98, False),
        ("test/accuracy > live + 1pp", 0.99, 0.98, False),
        ("test/loss <= live", 0.3, 0.2, False),
        ("test/loss <= live", 0.2, 0.3, True),
        ("test/loss < live - 0.1", 0.2, 0.3, False),
        ("test/loss < live - 0.1", 0.19, 0.3, True),
    ],
)
def test_a_condition_is_met_or_not(text: str, new: float, live: float, met: bool) -> None:
    assert parse_condition(text).met(new, live) is met


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ({}, {"alias": "production", "if": "first"}),
        ({"alias": "production"}, {"alias": "production", "if": "first"}),
        ({"alias": "canary"}, {"alias": "canary", "if": "always"}),
        ({"alias": "canary", "if": "first"}, {"alias": "canary", "if": "first"}),
        ({"alias": None}, {"alias": None, "if": None}),
        ({"alias": None, "if": None}, {"alias": None, "if": None}),
        ({"promote": "never"}, {"alias": None, "if": None}),
        ({"promote": "first"}, {"alias": "production", "if": "first"}),
        ({"promote": "always"}, {"alias": "production", "if": "always"}),
        (
            {"if": "first  and test/accuracy>=.9 and test/macro_f1 > guess"},
            {
                "alias": "production",
                "if": "first and test/accuracy >= 90% and test/macro_f1 > guess",
            },
        ),
        (
            {"if": "test/accuracy>=live-0.5pp"},
            {"alias": "production", "if": "test/accuracy >= live - 0.5pp"},
        ),
    ],
)
def test_every_default_is_written_out(given: dict[str, Any], written: dict[str, Any]) -> None:
    found = recipe(publish={"model": "small", **given})
    assert found.document()["publish"] == {
        "model": "small", "bump": None, "slo": None, **written,
    }  # fmt: skip
    assert Recipe.model_validate(found.document()) == found


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"promote": "first", "if": "always"}, "promote says the same as if; drop promote"),
        ({"promote": "often"}, "promote is 'often'; it was never, first or always"),
        ({"alias": None, "if": "always"}, "if is 'always' and alias null; name an alias to move"),
        ({"alias": "a/b"}, "alias 'a/b' is not allowed"),
    ],
)
def test_nothing_is_said_twice(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(reason)):
        PromotePart.model_validate(given)


@dataclass
class Place:
    """A store with versions of made-up bytes."""

    folder: Path

    def __post_init__(self) -> None:
        self.store = ModelStore(str(self.folder / "store"))

    def publish(self) -> Manifest:
        return self.store.publish(draft_in(self.folder, "small"), self.folder)

    def live(self, alias: str = "production") -> int | None:
        pointers = self.store.pointers("small")
        return pointers.aliases.get(alias) if pointers else None

    def train(
        self, comparison: LiveComparison | None = None, /, **publish: Any
    ) -> tuple[Manifest, Promotion]:
        manifest = self.publish()
        wanted = recipe(publish={"model": "small", **publish})
        return manifest, promote(wanted, manifest, self.store, comparison)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.mark.parametrize(
    ("publish", "expected"),
    [
        ({"alias": None}, [None, None]),
        ({"if": "first"}, [1, 1]),
        ({"if": "always"}, [1, 2]),
    ],
)
def test_the_recipe_says_when_a_version_goes_live(
    place: Place, publish: dict[str, Any], expected: list[int | None]
) -> None:
    found: list[int | None] = []
    for version in (1, 2):
        _, promotion = place.train(**publish)
        found.append(place.live())
        assert promotion.moved == (found[-1] == version)
    assert found == expected


def test_another_alias_leaves_production_alone(place: Place) -> None:
    place.train()
    manifest, promotion = place.train(alias="canary")
    assert promotion == Promotion(True, " → canary")
    assert (place.live(), place.live("canary")) == (1, manifest.version)


def comparison(version: int | None, met: bool) -> LiveComparison:
    figures: dict[str, Any] = {"live": 0.8, "artifact": "onnx"} if version else {}
    return LiveComparison(
        condition="test/accuracy >= live", version=version, new=0.9, met=met, **figures
    )


@pytest.mark.parametrize("alias", ["production", "canary"])
def test_a_met_condition_moves_the_alias_and_its_history_says_why(place: Place, alias: str) -> None:
    place.train()
    manifest, promotion = place.train(
        comparison(1, met=True), alias=alias, **{"if": "test/accuracy >= live"}
    )
    assert promotion.moved
    assert promotion.text.startswith(f" → {alias} (test/accuracy >= live is met: 0.9000 against")
    assert place.live(alias) == manifest.version
    assert "0.8000 of version 1" in place.store.history("small")[-1].why


def test_a_condition_that_is_not_met_moves_nothing(place: Place) -> None:
    place.train()
    _, promotion = place.train(comparison(1, met=False), **{"if": "test/accuracy >= live"})
    assert not promotion.moved
    assert promotion.text.startswith("; production stays where it is (test/accuracy >= live is not")
    assert place.live() == 1


def test_nothing_live_is_met_by_everything(place: Place) -> None:
    _, promotion = place.train(comparison(None, met=True), **{"if": "test/accuracy >= live"})
    assert promotion == Promotion(True, " → production (nothing is live yet)")


@pytest.mark.parametrize("alias", ["production", "canary"])
def test_what_was_compared_must_still_be_live(place: Place, alias: str) -> None:
    place.train()
    somebody_elses = place.publish()
    place.store.promote("small", somebody_elses.version)
    _, promotion = place.train(
        comparison(1, met=True), alias=alias, **{"if": "test/accuracy >= live"}
    )
    assert not promotion.moved
    assert "alias 'production' of 'small' names 2 and no longer 1" in promotion.text
    assert place.live() == 2


def at_the_same_moment(
    place: Place, monkeypatch: pytest.MonkeyPatch, move: Callable[[], object]
) -> None:
    """Moves a pointer once, after `promote` has read the pointers and before it writes one."""
    storage = place.store.storage
    create = storage.create

    def later(path: str, data: bytes) -> None:
        if "/pointers/" in path:
            monkeypatch.undo()
            move()
        create(path, data)

    monkeypatch.setattr(storage, "create", later)


def test_a_decision_that_still_holds_survives_who_moves_another_alias(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.train()
    at_the_same_moment(place, monkeypatch, lambda: place.store.promote("small", 1, "canary"))
    manifest, promotion = place.train(comparison(1, met=True), **{"if": "test/accuracy >= live"})
    assert promotion.moved
    assert (place.live(), place.live("canary")) == (manifest.version, 1)


def test_whoever_is_second_with_a_first_version_leaves_the_pointer_alone(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = place.publish()
    at_the_same_moment(place, monkeypatch, lambda: place.store.promote("small", first.version))
    _, promotion = place.train()
    said = "; production stays where it is (production names a version, and publish.if is first)"
    assert promotion == Promotion(False, said, "production")
    command = "; to move it: flambeau models promote small 2"
    assert promotion.advice(place.store.manifest("small", 2), "./var/model_store") == command
    elsewhere = promotion.advice(place.store.manifest("small", 2), "my store")
    assert elsewhere == f"{command} --store 'my store'"
    canary = Promotion(False, said, "canary").advice(place.store.manifest("small", 2), "s3://b/p")
    assert canary == f"{command} --alias canary --store s3://b/p"
    assert place.live() == first.version


def test_a_conflict_is_passed_on_when_the_version_must_go_live(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = place.publish()
    at_the_same_moment(place, monkeypatch, lambda: place.store.promote("small", first.version))
    always: dict[str, Any] = {"if": "always"}
    with pytest.raises(ConflictError, match="check its history"):
        place.train(**always)


class FirstPixels(nn.Module):
    """Returns the first pixels as logits."""

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return image.flatten(1)[:, :CLASSES]


class Compared:
    """A live version with arbitrary outputs, and a new one that predicts every row correctly."""

    def __init__(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        self.place = place
        labels = np.arange(ROWS) % CLASSES
        images = np.zeros((ROWS, 1, 8, 8), np.float32)
        images.reshape(ROWS, -1)[np.arange(ROWS), labels] = 1
        split = Split({"image": images}, labels)
        self.splits = Splits(split, split, split)
        self.signature = SIGNATURE
        self.wrong = 0
        self.drift = 0.0
        self.fails: Exception | None = None
        monkeypatch.setitem(STORED_KINDS, "onnx", StoredKind(suffix="onnx"))
        monkeypatch.setattr(live_comparison, "run_limited", self._here)

    def _here(self, call: Any, _: Artifact, path: Path, *__: Any, **___: Any) -> Any:
        assert path.read_bytes() == b"onnx bytes"
        if self.fails:
            raise self.fails
        logits = self.splits.test.inputs["image"].reshape(ROWS, -1)[:, :CLASSES].copy()
        logits[: self.wrong] = np.roll(logits[: self.wrong], 1, axis=1)
        return logits.astype(np.float32) * np.float32(1 + self.drift)

    def live(self, **changes: Any) -> None:
        folder = self.place.folder
        version = self.place.store.publish(draft_in(folder, "small", **changes), folder).version
        self.place.store.promote("small", version)

    def compare(self, condition: str) -> LiveComparison:
        wanted = recipe(publish={"model": "small", "if": condition})
        model, test = FirstPixels(), self.splits.test
        trained = Trained(model=model, weights=Path(), signature=self.signature, state=TrainState())
        outputs = module_runner(model, SIGNATURE)(test.inputs)
        expected = Reference(
            signature=self.signature,
            golden_inputs=test.inputs,
            golden_outputs=outputs,
            test=test,
            test_outputs=outputs,
        )
        metrics = evaluate(model, test, wanted, "test")
        found = compare_with_live(wanted, trained, self.splits, expected, metrics, self.place.store)
        assert found is not None
        return found


@pytest.fixture
def compared(place: Place, monkeypatch: pytest.MonkeyPatch) -> Compared:
    return Compared(place, monkeypatch)


def test_both_values_and_how_sure_they_are_are_told(compared: Compared) -> None:
    compared.live()
    compared.wrong = 4
    found = compared.compare("test/accuracy > live + 9pp")
    assert (found.version, found.artifact, found.new, found.live) == (1, "onnx", 1.0, 0.9)
    assert found.met
    assert found.new_interval is not None
    assert found.live_interval == pytest.approx((0.769, 0.960), abs=1e-3)
    assert found.difference_interval == pytest.approx((0.1 - 0.093, 0.1 + 0.093), abs=1e-3)
    assert found.text() == (
        "test/accuracy > live + 9pp is met: 1.0000 against 0.9000 of version 1 (onnx); "
        "the difference is +0.70 to +19.30 points with 95 % confidence"
    )
    assert not compared.compare("test/accuracy > live + 10pp").met


def test_a_loss_is_better_when_it_is_lower(compared: Compared) -> None:
    compared.live()
    compared.wrong = 4
    found = compared.compare("test/loss < live")
    assert found.met
    assert found.new is not None
    assert found.live is not None
    assert found.new < found.live
    assert found.difference_interval is None


def test_a_loss_that_differs_by_rounding_is_as_good(compared: Compared) -> None:
    compared.live()
    compared.drift = 4e-6
    found = compared.compare("test/loss <= live")
    assert found.met
    assert found.new is not None
    assert found.live is not None
    assert 0 < found.new - found.live < 1e-5
    assert not compared.compare("test/loss < live").met
    compared.drift = 1e-3
    assert not compared.compare("test/loss <= live").met


def test_without_a_live_version_nothing_is_run(compared: Compared) -> None:
    assert compared.compare("test/accuracy >= live").met


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            {"outputs": (SIGNATURE.outputs[0].model_copy(update={"shape": (-1, 9)}),)},
            "it gives logits FP32 [-1, 10], and the new version logits FP32 [-1, 9]",
        ),
        (
            {"inputs": (SIGNATURE.inputs[0].model_copy(update={"name": "picture"}),)},
            "it takes image FP32 [-1, 1, 8, 8], and the new version picture FP32 [-1, 1, 8, 8]",
        ),
        ({"labels": {"logits": tuple("abcdefghij")}}, "the names of its classes differ"),
    ],
)
def test_a_live_version_with_another_signature_is_not_compared(
    compared: Compared, change: dict[str, Any], reason: str
) -> None:
    compared.live()
    compared.signature = SIGNATURE.model_copy(update=change)
    found = compared.compare("test/accuracy >= live")
    assert (found.met, found.refusal) == (False, reason)
    assert found.text() == f"live version 1 was not compared: {reason}"


def test_what_the_run_does_not_measure_is_not_compared(compared: Compared) -> None:
    compared.live()
    assert compared.compare("test/exact_match >= live").refusal == (
        "this run has no test/exact_match"
    )


def test_a_live_version_that_does_not_run_is_not_compared(compared: Compared) -> None:
    compared.live()
    compared.fails = IsolationError("its process was ended by SIGSEGV")
    found = compared.compare("test/accuracy >= live")
    assert (found.met, found.refusal) == (False, "its process was ended by SIGSEGV")


def test_the_artifact_nearest_to_the_checkpoint_is_run(compared: Compared) -> None:
    folder = compared.place.folder
    kinds: list[dict[str, Any]] = [
        {"name": "onnx-int8", "precision": "int8", "latency_ms": {1: 0.01}},
        {"name": "pt2", "kind": "pt2"},
        {"name": "onnx"},
    ]
    artifacts = [artifact_in(folder, **kind) for kind in kinds]
    compared.live(artifacts=tuple(artifacts))
    assert compared.compare("test/accuracy >= live").artifact == "onnx"


def test_no_code_of_a_remote_store_is_run(compared: Compared) -> None:
    compared.live(artifacts=(artifact_in(compared.place.folder, name="pt2", kind="pt2"),))
    compared.place.store.storage.is_local = False
    assert compared.compare("test/accuracy >= live").refusal == (
        "it is a Python model, or has only artifacts that are code and the store is remote"
    )


def test_rows_on_which_both_agree_narrow_the_interval() -> None:
    assert paired_interval(np.array([0.0, 0.0, 0.0, 0.0])) == (0.0, 0.0)
    few = paired_interval(np.array([1.0, *[0.0] * 99]))
    assert few == pytest.approx((0.01 - 0.0195, 0.01 + 0.0195), abs=1e-4)
