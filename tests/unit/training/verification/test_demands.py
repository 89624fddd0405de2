"""A recipe's requirements before an alias moves to a version: figures, and better than a guess."""

from pathlib import Path

import pytest

from model_store.manifest import Manifest
from tests.fixtures.store_versions import draft_in
from tests.unit.training.recipes import recipe
from tests.unit.training.test_promotion import Place, comparison
from training.promotion import Promotion, promote
from training.recipe.parts.promotion_condition import parse_condition, parse_rule
from training.reporting.report import LiveComparison


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def trained(
    place: Place, figures: dict[str, float], rule: str, found: LiveComparison | None = None
) -> tuple[Manifest, Promotion]:
    """A version of these figures, and what became of its alias."""
    draft = draft_in(place.folder, "small")
    lineage = draft.lineage.model_copy(update={"metrics": figures})
    manifest = place.store.publish(draft.model_copy(update={"lineage": lineage}), place.folder)
    wanted = recipe(publish={"model": "small", "if": rule})
    return manifest, promote(wanted, manifest, place.store, found)


@pytest.mark.parametrize(
    ("rule", "moved", "words"),
    [
        ("test/accuracy >= 70%", True, "test/accuracy >= 70% is met: it is 80.0 %"),
        ("test/accuracy >= 0.9", False, "test/accuracy >= 90% is not met: it is 80.0 %"),
        ("test/accuracy > guess", True, "test/accuracy > guess is met: 80.0 % against 60.0 %"),
        ("test/accuracy > guess + 20pp", False, "+ 20pp is not met: 80.0 % against 60.0 %"),
        ("test/macro_f1 >= 0.1", False, "is not met: this run has no such figure"),
        ("first and test/accuracy >= 70%", True, "is met: it is 80.0 %"),
        ("first and test/accuracy >= 0.9", False, "is not met: it is 80.0 %"),
        ("test/accuracy >= 70% and test/accuracy >= 0.9", False, "90% is not met: it is 80.0 %"),
    ],
)
def test_a_demand_decides_by_the_versions_own_figures(
    place: Place, rule: str, moved: bool, words: str
) -> None:
    figures = {"test/accuracy": 0.8, "guess/accuracy": 0.6}
    manifest, promotion = trained(place, figures, rule)
    assert promotion.moved is moved
    assert words in promotion.text
    assert place.live() == (manifest.version if moved else None)


def test_first_holds_beside_a_demand(place: Place) -> None:
    place.train()
    rule = "first and test/accuracy >= 70%"
    _, promotion = trained(place, {"test/accuracy": 0.8}, rule)
    said = "; production stays where it is (production names a version, and publish.if is first)"
    assert promotion == Promotion(False, said, "production")


@pytest.mark.parametrize(("value", "met"), [(0.8, True), (0.5, False)])
def test_a_demand_and_a_comparison_must_both_hold(place: Place, value: float, met: bool) -> None:
    place.train()
    rule = "test/accuracy >= live and test/accuracy >= 70%"
    _, promotion = trained(place, {"test/accuracy": value}, rule, comparison(1, met=True))
    assert promotion.moved is met
    _, promotion = trained(place, {"test/accuracy": 0.9}, rule, comparison(1, met=False))
    assert not promotion.moved


def test_a_rule_tells_its_parts() -> None:
    rule = parse_rule("test/loss < live and test/accuracy > guess and test/accuracy >= 90%")
    assert str(rule.live) == "test/loss < live"
    assert [str(one) for one in rule.demands] == ["test/accuracy > guess", "test/accuracy >= 90%"]
    assert not rule.first
    assert str(parse_rule("always")) == "always"
    assert parse_rule("first").first


def test_rounding_neither_breaks_a_condition_nor_meets_a_strict_one() -> None:
    """The same recipe once more: its errors differ by what FP32 rounds."""
    new, live, rounding = 5.272e-07, 5.246e-07, 1e-5
    assert not parse_condition("test/rmse <= live").met(new, live)
    assert parse_condition("test/rmse <= live").met(new, live, rounding)
    assert not parse_condition("test/rmse < live").met(live, new, rounding)
    assert not parse_condition("test/rmse <= live").met(2e-5, live, rounding)
    assert parse_condition("test/rmse < live").met(live, 2e-5, rounding)
    assert parse_condition("test/r2 >= live - 0.1").met(0.799995, 0.9, rounding)


def test_values_that_are_close_are_told_apart() -> None:
    found = LiveComparison(
        condition="test/rmse <= live",
        version=1,
        new=5.272e-07,
        live=5.246e-07,
        artifact="onnx",
        met=True,
    )
    words = "test/rmse <= live is met: 5.272e-07 against 5.246e-07 of version 1 (onnx)"
    assert found.text() == words
