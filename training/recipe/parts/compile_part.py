"""The recipe keys that control `torch.compile` in training. Pure."""

from typing import TYPE_CHECKING

from training.recipe.parts.recipe_part import RecipePart

if TYPE_CHECKING:
    from training.recipe.recipe import Recipe


class CompilePart(RecipePart):
    """Compilation of the network for training."""

    compile: bool = False
    """True if torch compiles the network for training (`torch.compile`), once for each batch shape;
    checkpoints, evaluation and exports use the uncompiled network. Compiling takes half a minute or
    more at the start, and needs a C++ compiler, or Triton on a GPU. Set it for long runs if a trial
    of some epochs is faster with it; small networks on a CPU are not."""


def check_compile(recipe: "Recipe") -> None:
    """Rejects recipe keys that a compiled network does not support.

    Raises:
        ValueError: the recipe combines such a key with `train.compile`.
    """
    if not recipe.train.compile:
        return
    debug = recipe.debug
    wrong = [
        (
            "train.teacher_forcing gives the network another share in every step, and it would be "
            "compiled for each",
            recipe.train.teacher_forcing is not None,
        ),
        (
            "debug.activations and debug.backward look between its layers, which are one program "
            "then",
            bool(debug.activations or debug.backward),
        ),
        (
            "optim.sparse_adam needs sparse gradients, which such a program does not give",
            recipe.optim.sparse_adam is not None,
        ),
        ("debug.anomaly names operations, which are one program then", debug.anomaly),
        (
            "train.parallel fsdp gathers and shares weights between its layers, which are one "
            "program then",
            recipe.train.parallel == "fsdp",
        ),
    ]
    for what, asked in wrong:
        if asked:
            raise ValueError(
                f"train.compile makes one program of the network: {what}; drop it, or train.compile"
            )
