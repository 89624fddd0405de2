"""The recipe keys that control `torch.compile` in training. Pure."""

from training.recipe.parts.recipe_part import RecipePart


class CompilePart(RecipePart):
    """Compilation of the network for training."""

    compile: bool = False
    """True if torch compiles the network for training (`torch.compile`), once for each batch shape;
    checkpoints, evaluation and exports use the uncompiled network. Compiling takes half a minute or
    more at the start, and needs a C++ compiler, or Triton on a GPU. Set it for long runs if a trial
    of some epochs is faster with it; small networks on a CPU are not."""
