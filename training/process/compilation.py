"""Compiles a network for its training, so that a step takes less time.

In: a network. Out: the same function with the same weights, as native code of `torch.compile`.

Rules: each shape of a batch is compiled by itself, never several at once, so the code that runs on
a batch, and every bit of its result, does not depend on earlier batches, and a resumed run ends as
an uninterrupted one; a shape that cannot be compiled ends the run with an error instead of running
uncompiled silently; compiled programs are discarded at the end of the block.
"""

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from model_store.host.install_advice import package_command
from training.errors import RecipeError
from training.process.root_cause import root_cause

SHAPES = 64
"""Batch shapes for which a network is compiled, at most. Each takes seconds."""
BACKEND = "inductor"


def compiled(model: nn.Module) -> nn.Module:
    """Returns the compiled model; it shares its weights with the model, which stays as it is."""
    return torch.compile(model, dynamic=False, backend=BACKEND)  # type: ignore[return-value]


@contextlib.contextmanager
def compiling(wanted: bool, device: torch.device) -> Iterator[None]:
    """Applies this module's rules to programs of `compiled` within the block.

    Args:
        wanted: True if anything is compiled.
        device: the device of the training.

    Raises:
        RecipeError: there is no compiler, or the network cannot be compiled, or has batches of too
            many shapes.
    """
    if not wanted:
        yield
        return
    from torch._dynamo import config, exc, reset

    reset()
    limits: dict[str, Any] = {
        "recompile_limit": SHAPES,
        "accumulated_recompile_limit": 100 * SHAPES,  # of all functions that the network calls
        "fail_on_recompile_limit_hit": True,
        # By default torch splits the program of several processes where gradients are sent.
        "optimize_ddp": False,
    }
    try:
        with config.patch(**limits), warnings.catch_warnings():
            # torch warns of its own use of TorchScript.
            warnings.filterwarnings("ignore", ".*torch.jit.script", DeprecationWarning)
            _check_compiler(device)
            yield
    except exc.FailOnRecompileLimitHit:
        raise RecipeError(
            f"train.compile makes a program for each shape of a batch, and there are more than "
            f"{SHAPES} of them; cut or pad rows to fewer lengths (padding.static, "
            "data.sampler.bucketed), or drop train.compile"
        ) from None
    except exc.TorchDynamoException as error:
        words = root_cause(getattr(error, "inner_exception", error))
        raise RecipeError(
            f"train.compile: torch {torch.__version__} cannot compile the network: {words}; drop "
            "train.compile"
        ) from error
    finally:
        reset()


def _check_compiler(device: torch.device) -> None:
    """Checks that there is a compiler; raises a RecipeError otherwise."""
    if device.type == "cuda":
        from torch.utils._triton import has_triton

        if not has_triton():
            raise RecipeError(
                "train.compile needs Triton on a GPU, and it is not installed or the GPU is too "
                f"old; install it ({package_command('triton')}), or drop train.compile"
            )
        return
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        raise RecipeError(
            "train.compile needs a C++ compiler, and none is here; install g++, or drop "
            "train.compile"
        ) from None
