"""The recipe keys of the training loop: duration, the best epoch, its metric, checkpoints. Pure."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, JsonValue, field_validator

from flambeau.protocol.strict import Matching
from model_store.metric import BETTER, Better
from training.recipe.parts.compile_part import CompilePart
from training.recipe.parts.parallel_part import ParallelPart
from training.recipe.parts.recipe_part import RecipePart
from training.recipe.parts.task import METRICS

STOP_METRICS = ("val/loss", *sorted({f"val/{n}" for names in METRICS.values() for n in names}))
"""All values of `stop.metric`, over all tasks."""
MAX_METRIC_NAME = 64
"""Most characters of the name of an own metric, which tables and conditions contain."""
_DEVICE = "auto, cpu, cuda, or a GPU such as cuda:1"


class TeacherForcing(RecipePart):
    """Share of decoder steps that receive the correct symbol instead of the decoder's last output.

    The share changes linearly from the first step of the run to the last (scheduled sampling;
    Bengio et al., 2015).
    """

    first: float = Field(default=1.0, ge=0, le=1)
    """Share at the first step. Lower it when the decoder copies labels and ignores its input."""
    last: float = Field(default=0.0, ge=0, le=1)
    """Share at the last step. Raise it when training becomes unstable towards the end."""


class TrainPart(ParallelPart, CompilePart):
    """Duration, device and precision of training."""

    epochs: int = Field(default=20, ge=0, le=100_000)
    """Passes over the training rows. Raise it while the validation metric still improves. 0 trains
    nothing, as `train: none` does, and needs `weights`."""
    steps_per_epoch: int | None = Field(default=None, ge=1)
    """Optimizer steps in an epoch; null for all rows. Give it for endless streams, and for epochs
    so long that validation would be too rare."""
    deterministic: bool = True
    """True if torch must use deterministic algorithms, and raise where it has none. Set it false
    when that is too slow; the result of a resumed run then differs slightly."""
    threads: int = Field(default=0, ge=0, le=1024)
    """CPU threads; 0 uses torch's default. Fix a number to get identical bits on machines with
    different numbers of cores."""
    device: Annotated[str, Matching(r"^(auto|cpu|cuda(:[0-9]{1,2})?)$", _DEVICE)] = "auto"
    """Device of the training: `cpu`, `cuda`, `cuda:1`, or `auto`, which uses a GPU if torch finds
    one. Give it to keep a run on the CPU, or on a GPU of its own."""
    teacher_forcing: TeacherForcing | None = None
    """For sequence generation: in training, `forward` also receives `targets` (the labels) and
    `teacher_forcing` (a share). Give it when the model accepts both."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Compute type of autocast-safe layers in training; weights and evaluation stay FP32. Take
    `bf16` for speed on GPUs and on CPUs with bfloat16, `fp16` on older GPUs."""
    ema: float | None = Field(default=None, gt=0, lt=1)
    """Decay of the exponential moving average of the weights, per step; the average is evaluated
    and published. null uses the weights themselves. Give 0.99 to 0.9999, more for more steps."""
    activation_checkpoint: tuple[str, ...] = ()
    """Patterns of layer names, such as `blocks.*`, whose activations are recomputed in the backward
    pass instead of stored. Give it when memory runs out; a step takes up to a third longer."""


def _untrained(value: object) -> object:
    """Expands `train: none` to `train: {epochs: 0}`."""
    return {"epochs": 0} if value == "none" else value


Train = Annotated[
    TrainPart, BeforeValidator(_untrained, json_schema_input_type=TrainPart | Literal["none"])
]


class StopPart(RecipePart):
    """Selection of the best epoch, and early stopping."""

    metric: Annotated[str, Field(json_schema_extra={"examples": list(STOP_METRICS)})] = "val/loss"
    """Metric that selects the best epoch and drives the `plateau` schedule. Take `val/accuracy`
    when only the top class matters and there are thousands of validation rows, `val/exact_match`
    when a row has several labels and all must be right, `val/macro_f1` when rare classes matter as
    much as others; for numeric labels `val/rmse`, `val/mae` or `val/r2`, for labels 0 and 1
    `val/f1`; for a `metric` of your own, `val/` and its name."""
    patience: int | None = Field(default=None, ge=1)
    """Epochs without improvement before training stops; null never stops early. Set it when epochs
    are expensive."""


class MetricPart(RecipePart):
    """A metric of your own, in place of the task's in `stop.metric`, `publish.if` and verification.

    Its name is that of the function: `macro_recall` gives `val/macro_recall` and
    `test/macro_recall`.
    """

    target: str
    """Your function, `path/file.py:name` or `package.module:name`: called with the first output of
    all rows of a split, [rows, ...], and their labels, both NumPy arrays, it returns a number. Give
    it when no metric of the task tells what matters."""
    args: dict[str, JsonValue] = Field(default={})
    """Further keyword arguments of `target`. Change them with it."""
    better: Better
    """Direction: `higher` or `lower`. `max_metric_drop` limits the fall of a metric that is better
    when higher, in its own unit; `max_error_rise` the relative rise of the other."""

    @field_validator("target")
    @classmethod
    def _new_name(cls, value: str) -> str:
        name = value.rpartition(":")[2]
        if name in BETTER:
            raise ValueError(f"'{name}' is the name of a metric that is known; rename the function")
        if not name.isidentifier() or len(name) > MAX_METRIC_NAME:
            raise ValueError(
                f"name a function of at most {MAX_METRIC_NAME} letters, digits and '_'"
            )
        return value

    @property
    def name(self) -> str:
        """Name of the metric without its split."""
        return self.target.rpartition(":")[2]


class CheckpointPart(RecipePart):
    """Frequency and retention of checkpoints."""

    every_epochs: int = Field(default=1, ge=1)
    """Epochs between checkpoints. Raise it when writing takes longer than the work you can lose."""
    every_steps: int | None = Field(default=None, ge=1)
    """Optimizer steps between checkpoints within an epoch; null for none. Give it when an epoch is
    more work than you can lose."""
    keep: int = Field(default=1, ge=1, le=10_000)
    """Number of recent checkpoints whose weights stay in the folder, beside those of the best
    epoch. Raise it to inspect or average them later; a run resumes from the last."""
