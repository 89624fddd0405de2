"""`publish: {rollout: ...}` of a recipe: when a rollout starts, and what is refused."""

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from model_store.rollouts.rollout_store import abort_rollout
from model_store.store import ModelStore
from tests.fixtures.store_versions import draft_in
from tests.unit.training.recipes import recipe
from training.promotion import Promotion, promote
from training.recipe.parts.promotion_rule import PromotePart
from training.reporting.report import LiveComparison

ROLLOUT = {"steps": ["1%", "50%", "100%"], "every": "60s", "mirror": "20 %"}


class Runs:
    """Runs that publish versions of made-up bytes to a store."""

    def __init__(self, folder: Path) -> None:
        self.store, self._folder = ModelStore(str(folder / "store")), folder

    def run(self, comparison: LiveComparison | None = None, **publish: Any) -> Promotion:
        """Publishes a version, and does what the recipe says about its promotion."""
        manifest = self.store.publish(draft_in(self._folder, "small"), self._folder)
        wanted = recipe(publish={"model": "small", "rollout": ROLLOUT, **publish})
        return promote(wanted, manifest, self.store, comparison)


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path)


def test_the_first_version_is_promoted_and_the_next_is_rolled_out(runs: Runs) -> None:
    assert runs.run() == Promotion(True, " → production")
    told = runs.run()
    assert told.text == "; a rollout beside version 1 has started: 1%, 50%, 100%"
    assert not told.moved
    pointers = runs.store.pointers("small")
    assert pointers is not None
    rollout = pointers.traffic.rollout
    assert rollout is not None
    assert pointers.aliases == {"production": 1}
    assert (rollout.candidate, rollout.every_s, rollout.mirrored) == (2, 60, 0.2)
    assert pointers.why.startswith("trained from recipe")


def test_a_rollout_that_cannot_start_leaves_everything(runs: Runs) -> None:
    runs.run()
    runs.run()
    told = runs.run()
    assert "production stays where it is (version 2 is being rolled out" in told.text
    abort_rollout(runs.store, "small")
    assert "has started" in runs.run().text


def compared(version: int | None, *, met: bool) -> LiveComparison:
    figures: dict[str, Any] = {"live": 0.8, "artifact": "onnx"} if version else {}
    return LiveComparison(
        condition="test/accuracy >= live", version=version, new=0.9, met=met, **figures
    )


def test_the_condition_decides_if_a_rollout_starts(runs: Runs) -> None:
    given = {"if": "test/accuracy >= live"}
    assert runs.run(compared(None, met=True), **given).moved
    assert "is not" in runs.run(compared(1, met=False), **given).text
    pointers = runs.store.pointers("small")
    assert pointers is not None
    assert not pointers.traffic
    assert "has started" in runs.run(compared(1, met=True), **given).text


def test_what_was_compared_must_still_be_live(runs: Runs) -> None:
    runs.run()
    given = {"if": "test/accuracy >= live"}
    for version in (None, 7):
        told = runs.run(compared(version, met=True), **given)
        assert f"names 1 and no longer {version or 'nothing'}" in told.text
    pointers = runs.store.pointers("small")
    assert pointers is not None
    assert not pointers.traffic


def test_a_rollout_is_written_out_as_it_is_read() -> None:
    part = PromotePart.model_validate({"rollout": ROLLOUT})
    assert part.rollout is not None
    assert (part.rollout.every, part.rollout.mirror) == ("1m", "20%")
    assert part.condition == "always"
    assert PromotePart.model_validate(part.model_dump()) == part
    assert "rollout" not in PromotePart.model_validate({}).model_dump()


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"rollout": {}, "alias": "canary"}, "a rollout leads to production"),
        ({"rollout": {}, "alias": None}, "a rollout leads to production"),
        ({"rollout": {}, "if": "first"}, "holds before any version is live"),
        ({"rollout": {"steps": ["50%", "1%"]}}, "write ascending shares"),
        ({"rollout": {"steps": ["0%", "1%"]}}, "write ascending shares"),
        ({"rollout": {"steps": ["100%"]}}, "write ascending shares"),
        ({"rollout": {"steps": ["1"]}}, "write a percentage"),
        ({"rollout": {"every": "5"}}, "write a number and s, m, h or d"),
        ({"rollout": {"every": "31d"}}, "give at most 30d"),
        ({"rollout": {"sticky": "cookie:x"}}, "write header:NAME or parameter:NAME"),
        ({"rollout": {"mirror": "200%"}}, "write a percentage"),
    ],
)
def test_a_rollout_that_cannot_be_is_refused(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(reason)):
        PromotePart.model_validate(given)
