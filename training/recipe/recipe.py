"""The recipe: the complete configuration of one run as one frozen object. Pure rules, no I/O.

In: a mapping from YAML, or keyword arguments from Python. Out: a `Recipe` with every default filled
in, so that the stored copy records the actual configuration.

Rules: one key names the choice (`adamw:`), unknown keys are errors, and nothing can be configured
in two places.
"""

import hashlib
import json
from typing import Annotated, Any

from pydantic import Field, field_validator, model_validator

from flambeau.protocol.signature import DynamicAxes, Labels, Padding
from flambeau.protocol.strict import Matching, nearest_name
from model_store.errors import BadNameError
from model_store.manifest import check_name
from model_store.metric import Better, better_of
from model_store.semver.semver import Bump
from model_store.slo import Slo
from training.recipe.key_conflicts import (
    TRAINING_KEYS,
    check_compile,
    check_parallel,
    check_weights,
)
from training.recipe.kinds.export_kinds import Export
from training.recipe.kinds.onnx_kind import OnnxExport, OnnxInt8Export
from training.recipe.parts.auto_export import AutoPart, ExportChoice
from training.recipe.parts.compression import PrunePart, QatPart
from training.recipe.parts.data_parts import DataPart
from training.recipe.parts.debug_parts import DebugPart, ProfilePart
from training.recipe.parts.export_entries import QatEntry
from training.recipe.parts.loss_parts import LossPart
from training.recipe.parts.model_parts import ModelPart
from training.recipe.parts.optimizer_parts import OptimPart
from training.recipe.parts.parallel_part import ParallelPart
from training.recipe.parts.preprocess import Preprocess, check_order, python_step
from training.recipe.parts.promotion_rule import PromotePart
from training.recipe.parts.recipe_part import RecipePart
from training.recipe.parts.schedule_parts import SchedulePart
from training.recipe.parts.task import METRICS
from training.recipe.parts.tracking_parts import TrackerName, TrackingPart
from training.recipe.parts.train_parts import CheckpointPart, MetricPart, StopPart, Train, TrainPart

WeightsFile = Annotated[
    str,
    Matching(
        r"^.{1,1000}\.(safetensors|pt|pth|bin)$",
        "a .safetensors file, or a state_dict in a .pt, .pth or .bin file",
    ),
]


RegistryUrl = Annotated[
    str,
    Matching(r"^https?://[^\s@?#]{1,1000}$", "the URL of a server, as https://models.example:8000"),
]


class ExportLimits(RecipePart):
    """Limits on the cost of making or verifying one artifact; beyond them it is refused."""

    time_s: float = Field(default=600.0, gt=0)
    """Seconds. Raise it for models that take longer to compile."""
    memory_gib: float = Field(default=16.0, gt=0)
    """Memory in GiB. Raise it for models whose weights fill a large part of it."""


class PublishPart(PromotePart):
    """Destination of the verified artifacts."""

    model: str
    """Name of the model in the store. Change it to publish a separate model."""
    # Omitted if null, so that other recipes read and digest as before.
    to: RegistryUrl | None = Field(default=None, exclude_if=lambda to: to is None)
    """URL of the server whose registry gets the version, in place of the store, as
    `https://models.example:8000`; null for the store. `flambeau train` sends it, with the key in
    the environment variable `FLAMBEAU_KEY`. Give it if the servers do not share your store."""
    bump: Bump | None = None
    """Part of the semantic version to increment: `patch`, `minor` or `major`; null for the smallest
    valid one, which is detected: `major` for another signature, `minor` for another network or
    other weights, `patch` for the same ones. A smaller one is refused. Give it to have a run with
    larger changes refused, or to announce changes that cannot be detected."""
    slo: Slo | None = None
    """Service level objectives, from which alerts are generated: `availability`, `latency_ms`,
    `latency_share`. null for 0.999, and 0.99 within 250 ms; give what the model's clients need."""

    @field_validator("model")
    @classmethod
    def _model_name(cls, value: str) -> str:
        return _checked_name(value, "model name")

    @model_validator(mode="after")
    def _registry_decides_no_traffic(self) -> "PublishPart":
        if self.to is None:
            return self
        if self.rollout is not None:
            raise ValueError(
                "rollout is given and to names a registry; set alias to null, and start the "
                "rollout there (flambeau rollout start --at)"
            )
        if self.rule().live is not None:
            raise ValueError(
                f"if is {self.condition!r} and to names a registry, whose live version is not "
                "here; compare with numbers or guess, or publish into the store and push"
            )
        return self


class Recipe(RecipePart):
    """One run, from data to a published version."""

    name: str
    """Name of the run and prefix of its folder. Change it to keep runs apart."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    """Seed of the splits, the weights, the order of rows and dropout. Change it to measure the
    variance of a result."""
    model: ModelPart
    """Network to train. Change it for each project."""
    weights: WeightsFile | None = None
    """File with all weights of the network, published as they are: `.safetensors`, or a
    `state_dict` in `.pt`, `.pth` or `.bin`; paths start at the working directory. null trains the
    network. Give it, with `train: none`, for a network that was trained elsewhere."""
    data: DataPart
    """Training data. Change it for each project."""
    preprocess: Preprocess = ()
    """Transforms of the raw inputs, in order, in training and in serving: `scale`, `normalize`,
    `resize`, `lookup`, `module`, `python`. Give it so that clients can send raw data; see
    `docs/guides/training-data.md`."""
    loss: LossPart = LossPart()
    """Loss to minimise. Change it when the labels have another meaning."""
    # Omitted if null, so that other recipes read and digest as before.
    metric: MetricPart | None = Field(default=None, exclude_if=lambda metric: metric is None)
    """Metric of your own; null for those of the task. Give it when none of them tells what matters,
    such as a cost."""
    optim: OptimPart = OptimPart()
    """Optimizer and its settings. Change it when training is unstable or slow."""
    schedule: SchedulePart = SchedulePart()
    """Learning rate schedule. Change it with the number of epochs."""
    train: Train = TrainPart()
    """Duration, device and precision of training; `none` publishes `weights` without training.
    Change it when the result still improves."""
    stop: StopPart = StopPart()
    """Selection of the best epoch, and early stopping. Change it when epochs are expensive."""
    prune: PrunePart | None = None
    """Pruning of the trained network; null for none. Give it for networks larger than the task
    needs."""
    qat: QatPart | None = None
    """Quantization-aware training to 8 bits, after all other training; null for none. Give it when
    quantization costs too much accuracy, with entries of `method: qat`."""
    checkpoint: CheckpointPart = CheckpointPart()
    """Frequency and retention of checkpoints. Change it when epochs are very short."""
    track: tuple[TrackerName, ...] = ("tensorboard", "jsonl")
    """Trackers that receive the metrics of every epoch. Change it to write less, or add `mlflow` or
    `wandb`, which are extras."""
    tracking: TrackingPart = TrackingPart()
    """Servers of `mlflow` and `wandb`. Change it to compare several models in one place."""
    debug: DebugPart = DebugPart()
    """Diagnostics of every step. Give it when a network does not learn."""
    profile: ProfilePart | None = None
    """Steps that the profiler records in `profile.json` of the run's folder; null for none. Give it
    when training is slower than expected."""
    max_batch_size: int = Field(default=64, ge=1, le=65_536)
    """Most rows of one served batch. Raise it for small networks on large machines."""
    padding: Padding | None = None
    """Padding of requests of different lengths that share a batch; null if all rows have one
    length. Give it for text, audio and other inputs of variable length; see
    `docs/guides/exports.md`."""
    dynamic: DynamicAxes = Field(default={})
    """Axes of inputs whose size varies, each with its smallest and largest size, as in `{image: {2:
    [8, 32]}}`. Give it for models that take images of several sizes; only requests of one size
    share a batch."""
    labels: Labels = Field(default={})
    """Class names of an output, in order, as in `{logits: [cat, dog]}`. The metadata of the
    model has them, and `flambeau infer` prints them; responses have the output's numbers alone.
    Give it when classes have names."""
    export: ExportChoice = (OnnxExport(), OnnxInt8Export())
    """Artifacts to make and verify, or `auto`, which selects those that are worth serving. Add a
    kind when a host needs it; drop kinds that no host serves."""
    export_limits: ExportLimits = ExportLimits()
    """Limits on the cost of making and verifying one artifact. Change it for large models."""
    publish: PublishPart
    """Destination of the verified artifacts. Change it for each project."""

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
        known = [f"test/{name}" for name in self._metric_names()]
        for compared in self.publish.rule().conditions:
            if compared.metric not in known:
                raise ValueError(
                    f"publish.if compares {compared.metric}, and the loss is about "
                    f"{self.loss.judged_task}, which has no such metric"
                    f"{nearest_name(compared.metric, known)}"
                )
            if compared.direction != (better := self.better_of(compared.metric)):
                raise ValueError(
                    f"publish.if has '{compared}', and metric.better says that {compared.metric} "
                    f"is better when {better}; write {'<=' if better == 'lower' else '>='}"
                )
        return self

    @model_validator(mode="after")
    def _metric_of_the_task(self) -> "Recipe":
        if told := self.unknown_metric("stop.metric", self.stop.metric):
            raise ValueError(told)
        return self

    def unknown_metric(self, where: str, metric: str) -> str:
        """Returns the error message for a metric that the validation does not have, or "".

        Args:
            where: key that names the metric, for the message.
            metric: metric name, such as `val/accuracy`.
        """
        task = self.loss.judged_task
        known = [f"val/{name}" for name in self._metric_names()]
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
                "qat trains the exported network, which takes no targets; "
                "drop qat or train.teacher_forcing"
            )
        if self.prune is not None and self.prune.structured and taught:
            raise ValueError(
                "prune.structured cannot follow a network that takes targets; "
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
        check_parallel(self.train, self.model, self.data, self.optim, self.debug, self.prune)
        check_compile(self.train, self.optim, self.debug)
        return self

    @model_validator(mode="after")
    def _weights_or_training(self) -> "Recipe":
        fields = type(self).model_fields
        given = [key for key in TRAINING_KEYS if getattr(self, key) != fields[key].default]
        check_weights(self.weights, self.train, self.model, self.data, given)
        return self

    def _metric_names(self) -> list[str]:
        own = [] if self.metric is None else [self.metric.name]
        return ["loss", *METRICS[self.loss.judged_task], *own]

    def better_of(self, metric: str) -> Better:
        """Returns the direction of a metric, with or without its split, own metrics included."""
        if self.metric is not None and metric.rpartition("/")[2] == self.metric.name:
            return self.metric.better
        return better_of(metric)

    def listed_exports(self) -> tuple[Export, ...]:
        """Returns the entries of `export`; none if it is `auto`."""
        return () if isinstance(self.export, AutoPart) else self.export

    def answer_labels(self) -> tuple[str, ...]:
        """Returns the class names of the model's first output; empty if it has none."""
        return tuple(self.labels.get(self.model.outputs[0], ()))

    def document(self) -> dict[str, Any]:
        """Returns the recipe as plain YAML values, every default written out."""
        return self.model_dump(mode="json")

    def network_digest(self) -> str:
        """Returns a sha256 of the parts that define the network, without its weights."""
        document = self.document()
        model = {key: document["model"][key] for key in ("target", "args", "outputs")}
        parts = {"model": model, "preprocess": document["preprocess"]}
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def training_digest(self) -> str:
        """Returns a sha256 of the parts that set the weights; equal digests can share a checkpoint.

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
        del document["data"]["workers"]  # a resumed run may use more or fewer
        del document["model"]["embeddings"]
        if self.weights is None:  # equal digests for runs from before there was such a key
            del document["weights"]
        for key in ParallelPart.model_fields:  # a resumed run may use other processes
            del document["train"][key]
        return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def _checked_name(value: str, what: str) -> str:
    try:
        return check_name(value, what)
    except BadNameError as error:
        raise ValueError(str(error)) from error
