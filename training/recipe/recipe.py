"""The recipe: everything about one run, as one frozen object. Pure rules, no I/O.

In: a mapping from YAML, or keyword arguments from Python. Out: a `Recipe` with every default
filled in, so that the stored copy says what really happened.

Rules kept here: one key names the thing (`adamw:`), unknown keys are errors, and nothing can be
configured in two places.
"""

import hashlib
import json
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, JsonValue, field_validator, model_validator

from model_store.errors import BadNameError
from model_store.manifest import check_name
from model_store.semver import Bump
from model_store.signature import DynamicAxes, Labels, Padding, TensorName
from model_store.slo import Slo
from model_store.strict import nearest_name
from training.recipe.parts.auto_export import AutoPart, ExportChoice
from training.recipe.parts.compile_part import CompilePart, check_compile
from training.recipe.parts.compression import PrunePart, QatPart
from training.recipe.parts.data_parts import DataPart
from training.recipe.parts.debug_parts import DebugPart, ProfilePart
from training.recipe.parts.export_entries import Export, OnnxExport, OnnxInt8Export, QatEntry
from training.recipe.parts.loss_parts import LossPart
from training.recipe.parts.model_parts import FreezePart, InitPart
from training.recipe.parts.optimizer_parts import OptimPart
from training.recipe.parts.parallel_part import ParallelPart, check_parallel
from training.recipe.parts.preprocess import Preprocess, check_order, python_step
from training.recipe.parts.promotion_rule import PromotePart
from training.recipe.parts.recipe_part import RecipePart
from training.recipe.parts.schedule_parts import SchedulePart
from training.recipe.parts.task import METRICS
from training.recipe.parts.tracking_parts import TrackerName, TrackingPart

STOP_METRICS = ("val/loss", *sorted({f"val/{n}" for names in METRICS.values() for n in names}))
"""All that `stop.metric` may be, of some task."""
VERSION_NAME = (
    r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
    r"@([A-Za-z0-9][A-Za-z0-9._-]{0,127}|[\^~][0-9]{1,9}(\.[0-9]{1,9}){0,2})$"
)
"""`model@version`, `model@alias` or `model@range`."""


class ModelPart(FreezePart):
    """Which network is trained."""

    # `from` is a word of Python's, so the field has another name.
    model_config = ConfigDict(serialize_by_alias=True, validate_by_name=True)

    target: str
    """Your `torch.nn.Module`: `path/file.py:Name` (from the working directory) or
    `package.module:Name`. Change it to train another network."""
    args: dict[str, JsonValue] = Field(default={})
    """Keyword arguments of the target. Change them to size the network."""
    outputs: tuple[TensorName, ...] = Field(default=("logits",), min_length=1)
    """Names of what `forward` returns, in order. Change it when the network returns a tuple; the
    first output is the one that is judged: [rows, classes], or [rows, T, classes] where a row has
    T labels; [rows, D] or what else the labels are where they are numbers."""
    embeddings: tuple[TensorName, ...] = ()
    """Outputs that are vectors, [rows, D], which callers compare by their direction: artifacts are
    held to the checkpoint by `min_cosine`, in training and wherever the version is loaded. Give it
    for networks that are searched by, whose single numbers mean nothing."""
    init: InitPart = InitPart()
    """The first weights of its layers, by type. Give it when learning does not begin."""
    from_: Annotated[str, Field(pattern=VERSION_NAME)] | None = Field(default=None, alias="from")
    """A version in the store whose weights it begins with, as far as names and shapes agree: by
    number (`digits@3`), alias (`digits@production`), or semantic version (`digits@^1.2`, `@~1.2`,
    `@1.2.0`: the newest that fits); null begins anew. Give it where there is less data than an
    older model has seen."""

    @model_validator(mode="after")
    def _embeddings_are_outputs(self) -> "ModelPart":
        for name in self.embeddings:
            if name not in self.outputs:
                raise ValueError(
                    f"model.embeddings names '{name}', and model.outputs has no such"
                    f"{nearest_name(name, self.outputs)}"
                )
        return self

    @field_validator("outputs")
    @classmethod
    def _unique_outputs(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(value)) != len(value):
            raise ValueError("every output needs a name of its own")
        return value


class TeacherForcing(RecipePart):
    """How often a decoder is told the right symbol instead of its own last one.

    The share goes from the first step of the run to the last in a straight line (scheduled
    sampling; Bengio et al., 2015).
    """

    first: float = Field(default=1.0, ge=0, le=1)
    """Share of symbols at the first step. Lower it when the decoder copies and does not read."""
    last: float = Field(default=0.0, ge=0, le=1)
    """Share of symbols at the last step. Raise it when learning falls apart towards the end."""


class TrainPart(ParallelPart, CompilePart):
    """How long, and on what."""

    epochs: int = Field(default=20, ge=1, le=100_000)
    """Passes over the training rows. Raise it while the validation metric still climbs."""
    steps_per_epoch: int | None = Field(default=None, ge=1)
    """Steps of the optimizer after which an epoch is over; null for all rows. Give it for streams
    without an end, and for epochs too long to wait for a validation."""
    deterministic: bool = True
    """Whether torch must take algorithms that give the same bits in every run, and raise where it
    has none. Set it false when that is too slow; a resumed run then ends a little elsewhere."""
    threads: int = Field(default=0, ge=0, le=1024)
    """CPU threads; 0 takes what torch finds. Fix a number to get the same bits on machines with
    different numbers of cores."""
    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:[0-9]{1,2})?)$")] = "auto"
    """Where it learns: `cpu`, `cuda`, `cuda:1`, or `auto`, which takes a GPU where torch finds one.
    Give it to keep a run on the processor, or apart from others."""
    teacher_forcing: TeacherForcing | None = None
    """For a model that writes sequences: in training, `forward` is also given `targets` (the
    labels) and `teacher_forcing` (a share). Give it when the model takes them."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """What layers that are safe in it compute in while they learn; weights, and evaluation, stay
    FP32. Take `bf16` for speed on GPUs and on processors with bfloat16, `fp16` on older GPUs."""
    ema: float | None = Field(default=None, gt=0, lt=1)
    """Share of the averaged weights that each step keeps; the average is what is evaluated and
    published. null for the weights themselves. Give 0.99 to 0.9999, more for more steps."""
    activation_checkpoint: tuple[str, ...] = ()
    """Patterns of names of layers, such as `blocks.*`, whose activations are computed twice and not
    kept. Give it when memory runs out; a step takes up to a third longer."""


class StopPart(RecipePart):
    """Which epoch is best, and when to give up."""

    metric: Annotated[str, Field(json_schema_extra={"enum": list(STOP_METRICS)})] = "val/loss"
    """What decides which epoch is best, and when the learning rate falls on a plateau. Take
    `val/accuracy` when only the top class matters and there are thousands of validation rows,
    `val/exact_match` when a row has several labels and must get all of them right, `val/macro_f1`
    when rare classes matter as much as others; of numbers `val/rmse`, `val/mae` or `val/r2`, of
    labels 0 and 1 `val/f1`."""
    patience: int | None = Field(default=None, ge=1)
    """Epochs without a better value before training stops; null never stops early. Set it when
    epochs are expensive."""


class CheckpointPart(RecipePart):
    """How often a run can be picked up."""

    every_epochs: int = Field(default=1, ge=1)
    """Epochs between checkpoints. Raise it when writing takes longer than you mind losing."""
    every_steps: int | None = Field(default=None, ge=1)
    """Steps of the optimizer between checkpoints within an epoch; null for none. Give it when an
    epoch takes longer than you mind losing."""
    keep: int = Field(default=1, ge=1, le=10_000)
    """How many of the last checkpoints' weights stay in the folder, beside those of the best epoch.
    Raise it to look at them later, or to average them; a run resumes from the last."""


class ExportLimits(RecipePart):
    """What making one artifact, or proving it, may cost; what costs more is refused."""

    time_s: float = Field(default=600.0, gt=0)
    """Seconds. Raise it for models that compile for longer."""
    memory_gib: float = Field(default=16.0, gt=0)
    """Memory. Raise it for models whose weights fill a good part of it."""


class PublishPart(PromotePart):
    """Where the proven artifacts go."""

    model: str
    """Name of the model in the store. Change it to publish beside another model, not over it."""
    bump: Bump | None = None
    """What rises of the semantic version: `patch`, `minor` or `major`; null for the least that
    must, which is found out: `major` for another signature, `minor` for another network or other
    weights, `patch` for the same ones. Less is refused. Give it to have a run refused that changes
    more than you meant, or to tell callers of more than can be found out."""
    slo: Slo | None = None
    """What callers may count on, which alerts are made of: `availability`, `latency_ms`,
    `latency_share`. null for 0.999, and 0.99 within 250 ms; give what the model's callers need."""

    @field_validator("model")
    @classmethod
    def _model_name(cls, value: str) -> str:
        return _checked_name(value, "model name")


class Recipe(RecipePart):
    """One run, from data to a published version."""

    name: str
    """Name of the run; its folder starts with it. Change it to keep runs apart."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    """Seeds the splits, the weights, the order of rows and dropout. Change it to see how much luck
    there is in a result."""
    model: ModelPart
    """Which network is trained. Change it for each project."""
    data: DataPart
    """Which rows it learns from. Change it for each project."""
    preprocess: Preprocess = ()
    """What is done with the raw inputs first, in order, in training and wherever the model is
    served: `scale`, `normalize`, `resize`, `lookup`, `module`, `python`. Give it so that callers
    can send what they have; see `docs/training.md`."""
    loss: LossPart = LossPart()
    """What is minimised. Change it when the labels mean something else."""
    optim: OptimPart = OptimPart()
    """How the weights move. Change it when the loss is unstable or slow."""
    schedule: SchedulePart = SchedulePart()
    """How the learning rate changes. Change it with the number of epochs."""
    train: TrainPart = TrainPart()
    """How long, and on what. Change it when the result still improves."""
    stop: StopPart = StopPart()
    """Which epoch is best, and when to give up. Change it when epochs are expensive."""
    prune: PrunePart | None = None
    """What is taken away from the trained network; null for nothing. Give it for networks larger
    than the task needs."""
    qat: QatPart | None = None
    """Training for 8 bits, behind all other training; null for none. Give it when quantizing costs
    too much accuracy, with entries of `method: qat`."""
    checkpoint: CheckpointPart = CheckpointPart()
    """How often a run can be picked up. Change it when epochs are very short."""
    track: tuple[TrackerName, ...] = ("tensorboard", "jsonl")
    """Where the numbers of every epoch go. Change it to write less, or add `mlflow` or `wandb`,
    which are extras."""
    tracking: TrackingPart = TrackingPart()
    """Where `mlflow` and `wandb` find their servers. Change it to see several models together."""
    debug: DebugPart = DebugPart()
    """What is looked at in every step. Give it when a network does not learn."""
    profile: ProfilePart | None = None
    """Which steps are recorded in `profile.json` of the run's folder; null for none. Give it when
    training is slower than it should be."""
    max_batch_size: int = Field(default=64, ge=1, le=65_536)
    """Most rows a server runs at once. Raise it for small networks on large machines."""
    padding: Padding | None = None
    """How requests of different lengths share a batch; null if all rows have one length. Give it
    for text, sound and other inputs that vary; see `docs/training.md`."""
    dynamic: DynamicAxes = Field(default={})
    """Axes of inputs whose size varies, each with its smallest and largest size, as in `{image: {2:
    [8, 32]}}`. Give it for models that take images of several sizes; requests of one size share a
    batch."""
    labels: Labels = Field(default={})
    """Names of the classes of an output, in order, as in `{logits: [cat, dog]}`; callers see them.
    Give it when the labels are more than numbers."""
    export: ExportChoice = (OnnxExport(), OnnxInt8Export())
    """Artifacts to make and prove, or `auto`, which finds those that are worth it. Add a kind when
    a host needs it; drop what nobody serves."""
    export_limits: ExportLimits = ExportLimits()
    """What making and proving one artifact may cost. Change it for large models."""
    publish: PublishPart
    """Where the proven artifacts go. Change it for each project."""

    @field_validator("name")
    @classmethod
    def _run_name(cls, value: str) -> str:
        return _checked_name(value, "name of a run")

    @field_validator("preprocess")
    @classmethod
    def _python_first(cls, value: Preprocess) -> Preprocess:
        return check_order(value)

    @model_validator(mode="after")
    def _python_gives_one_shape(self) -> "Recipe":
        if python_step(self.preprocess) and (self.padding is not None or self.dynamic):
            raise ValueError(
                "padding and dynamic do not go with a python step, whose results have one shape; "
                "let it pad them"
            )
        return self

    @model_validator(mode="after")
    def _condition_of_the_task(self) -> "Recipe":
        known = ["test/loss", *(f"test/{name}" for name in METRICS[self.loss.judged_task])]
        for compared in self.publish.rule().conditions:
            if compared.metric not in known:
                raise ValueError(
                    f"publish.if compares {compared.metric}, and the loss is about "
                    f"{self.loss.judged_task}, which has no such metric"
                    f"{nearest_name(compared.metric, known)}"
                )
        return self

    @model_validator(mode="after")
    def _metric_of_the_task(self) -> "Recipe":
        if told := self.unknown_metric("stop.metric", self.stop.metric):
            raise ValueError(told)
        return self

    def unknown_metric(self, where: str, metric: str) -> str:
        """What is said of a metric that the validation will not have; empty if it has it.

        Args:
            where: it is named, for the message.
            metric: such as `val/accuracy`.
        """
        task = self.loss.judged_task
        known = ["val/loss", *(f"val/{name}" for name in METRICS[task])]
        if metric in known:
            return ""
        return (
            f"{where} is '{metric}', and the loss is about {task}, which has no such metric"
            f"{nearest_name(metric, known)}"
        )

    @model_validator(mode="after")
    def _outputs_of_losses(self) -> "Recipe":
        for term in self.loss.terms:
            if term.output is not None and term.output not in self.model.outputs:
                raise ValueError(
                    f"loss.sum names the output '{term.output}', and model.outputs has no such"
                    f"{nearest_name(term.output, self.model.outputs)}"
                )
        return self

    @model_validator(mode="after")
    def _judged_by_class_or_direction(self) -> "Recipe":
        first, task = self.model.outputs[0], self.loss.judged_task
        if first in self.model.embeddings and task in ("classes", "multi_label"):
            raise ValueError(
                f"model.embeddings names '{first}', whose classes the loss is about; name the "
                "output that is a vector"
            )
        return self

    @model_validator(mode="after")
    def _every_export_once(self) -> "Recipe":
        names = [entry.name for entry in self.listed_exports()]
        if len(set(names)) != len(names):
            raise ValueError(f"export lists an artifact twice in {names}; keep one of each")
        return self

    @model_validator(mode="after")
    def _phases_fit(self) -> "Recipe":
        taught = self.train.teacher_forcing is not None
        if any(isinstance(entry, QatEntry) for entry in self.listed_exports()) and self.qat is None:
            raise ValueError("export has method: qat, and the recipe no qat; add qat: {epochs: 3}")
        if self.qat is not None and taught:
            raise ValueError(
                "qat trains the exported network, which cannot be told answers; "
                "drop qat or train.teacher_forcing"
            )
        if self.prune is not None and self.prune.structured and taught:
            raise ValueError(
                "prune.structured cannot follow a network that is told answers; "
                "take structured: false, or drop train.teacher_forcing"
            )
        return self

    @model_validator(mode="after")
    def _optimizer_fits(self) -> "Recipe":
        if self.optim.lbfgs is not None and self.train.precision != "fp32":
            raise ValueError(
                f"optim.lbfgs compares losses that train.precision {self.train.precision} is too "
                "coarse for; take fp32"
            )
        if self.optim.muon is not None and self.prune is not None and not self.prune.structured:
            raise ValueError(
                "optim.muon moves whole matrices, and prune without structured must keep single "
                "weights at 0; take another optimizer"
            )
        return self

    @model_validator(mode="after")
    def _processes_fit(self) -> "Recipe":
        check_parallel(self)
        check_compile(self)
        return self

    def listed_exports(self) -> tuple[Export, ...]:
        """The entries of `export`; none if it is `auto`."""
        return () if isinstance(self.export, AutoPart) else self.export

    def document(self) -> dict[str, Any]:
        """The recipe as plain YAML values, every default written out."""
        return self.model_dump(mode="json")

    def network_digest(self) -> str:
        """A sha256 of the parts that make the network, beside its weights."""
        document = self.document()
        model = {key: document["model"][key] for key in ("target", "args", "outputs")}
        parts = {"model": model, "preprocess": document["preprocess"]}
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def training_digest(self) -> str:
        """A sha256 of the parts that decide the weights: equal digests can share a checkpoint.

        Exports, tolerances and publishing are left out, so that they can change after training.
        """
        later = {
            "checkpoint",
            "track",
            "tracking",
            "debug",
            "profile",
            "max_batch_size",
            "padding",
            "dynamic",
            "labels",
            "export",
            "export_limits",
            "publish",
        }
        document = {k: v for k, v in self.document().items() if k not in later}
        del document["data"]["workers"]  # a run may go on with more or fewer
        del document["model"]["embeddings"]
        for key in ParallelPart.model_fields:  # a run may go on with other processes
            del document["train"][key]
        return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def _checked_name(value: str, what: str) -> str:
    try:
        return check_name(value, what)
    except BadNameError as error:
        raise ValueError(str(error)) from error
