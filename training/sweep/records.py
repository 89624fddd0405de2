"""The records of a search, as stored in its `sweep.json`. Pure."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from flambeau.protocol.strict import StrictModel
from model_store.metric import Better, better_of

State = Literal["waiting", "running", "done", "pruned", "failed"]


class TrialRecord(StrictModel):
    """One training of a search."""

    number: int = Field(ge=1)
    """Number of the trial, counted from 1."""
    state: State
    values: dict[str, Any]
    """Values substituted in the recipe, by path."""
    epochs: int = 0
    """Number of completed epochs."""
    value: float | None = None
    """Search metric of the weights that would be published; for trials that are not done, of the
    last epoch."""
    took_s: float | None = None
    """Seconds since the trial was started or resumed."""
    reason: str | None = None
    """Reason of failure or pruning."""
    folder: str | None = None
    """Folder of its run in the search's folder."""

    def words(self, metric: str) -> str:
        """Formats one line: `trial 3 (train.epochs 7): val/accuracy 0.9750 after 7 epochs`.

        Args:
            metric: metric of the search.
        """
        values = ", ".join(f"{path} {value_text(value)}" for path, value in self.values.items())
        epochs = f"{self.epochs} epoch{'' if self.epochs == 1 else 's'}"
        return f"trial {self.number} ({values}): {metric} {figure_text(self.value)} after {epochs}"


class Published(StrictModel):
    """The published version of the best trial."""

    trial: int
    store: str
    model: str
    version: int


class SweepRecord(StrictModel):
    """A whole search."""

    name: str
    """Name of the recipe."""
    metric: str
    """Metric that compares trials."""
    better: Better | None = None
    """Direction of the metric; None in older records, whose metrics are known."""
    parameters: tuple[str, ...]
    """Parameters as they were given."""
    trials: tuple[TrialRecord, ...] = ()
    importances: dict[str, float] = Field(default={})
    """Share of influence on the metric by path, once some trials are done."""
    published: Published | None = None

    @property
    def direction(self) -> Better:
        """Direction of the metric."""
        return self.better or better_of(self.metric)

    def best(self) -> TrialRecord | None:
        """Returns the completed trial with the best value; the first of equal ones."""
        sign = 1 if self.direction == "lower" else -1
        done = [trial for trial in self.trials if trial.state == "done"]
        return min(
            done, key=lambda trial: (sign * (trial.value or 0.0), trial.number), default=None
        )

    def count(self, state: State) -> int:
        """Counts the trials in a state."""
        return sum(trial.state == state for trial in self.trials)

    def to_json(self) -> bytes:
        """Returns the bytes of `sweep.json`."""
        return (self.model_dump_json(indent=2) + "\n").encode()


def figure_text(value: float | None) -> str:
    """Formats a metric with four decimals, or four digits if those would be zeros."""
    if value is None:
        return "-"
    return f"{value:.4f}" if value == 0 or abs(value) >= 0.001 else f"{value:.4g}"


def values_text(values: Mapping[str, Any]) -> str:
    """Formats `lr 0.00123, epochs 7`, each by the last part of its path."""
    return ", ".join(f"{short(path)} {value_text(value)}" for path, value in values.items())


def short(path: str) -> str:
    """Returns the last part of a path."""
    return path.rpartition(".")[2]


def value_text(value: object) -> str:
    """Formats a value for a table."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
