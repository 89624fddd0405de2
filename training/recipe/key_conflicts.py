"""Rules between recipe keys of different parts. Pure."""

from collections.abc import Sequence

from training.recipe.parts.compression import PrunePart
from training.recipe.parts.data_parts import DataPart
from training.recipe.parts.debug_parts import DebugPart
from training.recipe.parts.loading_parts import LoadingFields
from training.recipe.parts.model_parts import ModelPart
from training.recipe.parts.optimizer_parts import OptimPart
from training.recipe.parts.parallel_part import check_shares
from training.recipe.parts.recipe_part import RecipePart
from training.recipe.parts.train_parts import TrainPart

TRAINING_KEYS = ("optim", "schedule", "stop", "prune", "qat", "checkpoint", "debug", "profile")
"""Keys of a recipe that only training reads."""


def check_weights(
    weights: str | None,
    train: TrainPart,
    model: ModelPart,
    data: DataPart,
    given: Sequence[str],
) -> None:
    """Rejects weights beside a training, and keys of training beside `train: none`.

    Args:
        weights: file of weights that are published as they are.
        train: training of the recipe.
        model: network of the recipe.
        data: data of the recipe.
        given: those of `TRAINING_KEYS` that differ from their default.

    Raises:
        ValueError: the recipe combines such keys.
    """
    if train.epochs:
        if weights is not None:
            raise ValueError(
                f"weights {weights} are published as they are, and train.epochs is {train.epochs}; "
                "add train: none, or drop weights: a training starts from a version, by model.from"
            )
        return
    if weights is None:
        raise ValueError(
            "train is none, and the recipe has no weights to publish; add weights: FILE, or give "
            "train.epochs"
        )
    untrained = TrainPart(epochs=0, threads=train.threads, deterministic=train.deterministic)
    kept = {"target", "args", "outputs", "embeddings"}
    unused = [
        *given,
        *(f"train.{key}" for key in _different(train, untrained)),
        *(f"model.{key}" for key in _different(model, ModelPart(target="")) if key not in kept),
        *(f"data.{key}" for key in _different(data, LoadingFields())),
    ]
    if unused:
        raise ValueError(
            f"train is none, and {', '.join(unused)} would change the training or the weights; "
            f"drop {'it' if len(unused) == 1 else 'them'}, or train the network without weights"
        )


def _different(part: RecipePart, usual: RecipePart) -> list[str]:
    """Returns the keys of `usual` whose values differ in a part."""
    fields = type(usual).model_fields
    return [
        field.alias or key
        for key, field in fields.items()
        if getattr(part, key) != getattr(usual, key)
    ]


def check_parallel(
    train: TrainPart,
    model: ModelPart,
    data: DataPart,
    optim: OptimPart,
    debug: DebugPart,
    prune: PrunePart | None,
) -> None:
    """Rejects recipe keys that training in several processes does not support.

    Raises:
        ValueError: the recipe combines such keys.
    """
    if train.parallel == "none":
        if train.processes > 1:
            raise ValueError(
                f"train.processes is {train.processes} and train.parallel none; take ddp or fsdp, "
                "or one process"
            )
        return
    check_shares(train.processes, data.batch_size, "data.batch_size")
    if optim.lbfgs is not None:
        raise ValueError(
            "optim.lbfgs searches along lines in one process; take another optimizer, or "
            "train.parallel none"
        )
    if optim.sparse_adam is not None:
        raise ValueError(
            "optim.sparse_adam has sparse gradients, which processes do not send each other; take "
            "another optimizer and embeddings with sparse=False, or train.parallel none"
        )
    if train.parallel == "ddp":
        return
    whole = [
        ("train.ema follows whole weights", train.ema is not None),
        ("train.precision fp16 scales whole gradients", train.precision == "fp16"),
        ("model.unfreeze_at changes which weights learn", model.unfreeze_at is not None),
        ("debug.gradients looks at whole gradients", bool(debug.gradients)),
        ("optim.muon moves whole matrices", optim.muon is not None),
        ("prune.at compares whole weights", prune is not None and bool(prune.at)),
        ("optim.adafactor moves whole matrices", optim.adafactor is not None),
    ]
    for what, asked in whole:
        if asked:
            raise ValueError(
                f"{what}, of which train.parallel fsdp leaves each process a share; drop it, or "
                "take ddp"
            )


def check_compile(train: TrainPart, optim: OptimPart, debug: DebugPart) -> None:
    """Rejects recipe keys that a compiled network does not support.

    Raises:
        ValueError: the recipe combines such a key with `train.compile`.
    """
    if not train.compile:
        return
    wrong = [
        (
            "train.teacher_forcing gives the network another share in every step, and it would be "
            "compiled for each",
            train.teacher_forcing is not None,
        ),
        (
            "debug.activations and debug.backward look between its layers, which are one program "
            "then",
            bool(debug.activations or debug.backward),
        ),
        (
            "optim.sparse_adam needs sparse gradients, which such a program does not give",
            optim.sparse_adam is not None,
        ),
        ("debug.anomaly names operations, which are one program then", debug.anomaly),
        (
            "train.parallel fsdp gathers and shares weights between its layers, which are one "
            "program then",
            train.parallel == "fsdp",
        ),
    ]
    for what, asked in wrong:
        if asked:
            raise ValueError(
                f"train.compile makes one program of the network: {what}; drop it, or train.compile"
            )
