"""Rules between recipe keys of different parts. Pure."""

from training.recipe.parts.compression import PrunePart
from training.recipe.parts.data_parts import DataPart
from training.recipe.parts.debug_parts import DebugPart
from training.recipe.parts.model_parts import ModelPart
from training.recipe.parts.optimizer_parts import OptimPart
from training.recipe.parts.parallel_part import check_shares
from training.recipe.parts.train_parts import TrainPart


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
