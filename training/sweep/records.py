"""The records of a search, as they lie in its `sweep.json`. Pure."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from model_store.metric import better_of
from model_store.strict import StrictModel

State = Literal["waiting", "running", "done", "pruned", "failed"]


class TrialRecord(StrictModel):
    """One training of a search."""

    number: int = Field(ge=1)
    """Counted from 1."""
    state: State
    values: dict[str, Any]
    """What was put into the recipe, by path."""
    epochs: int = 0
    """How far it came."""
    value: float | None = None
    """The search's metric of the weights it would publish; of those that were not done, the last
    epoch's."""
    took_s: float | None = None
    """Seconds, since it was begun or taken up again."""
    reason: str | None = None
    """Why it failed or was pruned."""
    folder: str | None = None
    """Of its run, in the search's folder."""

    def words(self, metric: str) -> str:
        """The trial in one line: `trial 3 (train.epochs 7): val/accuracy 0.9750 after 7 epochs`.

        Args:
            metric: of the search.
        """
        values = ", ".join(f"{path} {value_text(value)}" for path, value in self.values.items())
        epochs = f"{self.epochs} epoch{'' if self.epochs == 1 else 's'}"
        return f"trial {self.number} ({values}): {metric} {figure_text(self.value)} after {epochs}"


class Published(StrictModel):
    """What became of the best trial."""

    trial: int
    store: str
    model: str
    version: int


class SweepRecord(StrictModel):
    """A whole search."""

    name: str
    """Of the recipe."""
    metric: str
    """What trials are compared by."""
    parameters: tuple[str, ...]
    """As they were given."""
    trials: tuple[TrialRecord, ...] = ()
    importances: dict[str, float] = Field(default={})
    """Share of what decided the metric, by path, once some trials are done."""
    published: Published | None = None

    def best(self) -> TrialRecord | None:
        """The trial that is done with the best value; the first of equal ones."""
        sign = 1 if better_of(self.metric) == "lower" else -1
        done = [trial for trial in self.trials if trial.state == "done"]
        return min(
            done, key=lambda trial: (sign * (trial.value or 0.0), trial.number), default=None
        )

    def count(self, state: State) -> int:
        """How many trials are in a state."""
        return sum(trial.state == state for trial in self.trials)

    def to_json(self) -> bytes:
        """The bytes of `sweep.json`."""
        return (self.model_dump_json(indent=2) + "\n").encode()


def figure_text(value: float | None) -> str:
    """A metric as people read it: four decimals, or four digits where those would be zeros."""
    if value is None:
        return "-"
    return f"{value:.4f}" if value == 0 or abs(value) >= 0.001 else f"{value:.4g}"


def values_text(values: Mapping[str, Any]) -> str:
    """`lr 0.00123, epochs 7`, each by the last part of its path."""
    return ", ".join(f"{short(path)} {value_text(value)}" for path, value in values.items())


def short(path: str) -> str:
    """The last part of a path."""
    return path.rpartition(".")[2]


def value_text(value: object) -> str:
    """A value for a table."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
