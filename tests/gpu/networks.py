"""Small networks as TorchScript, for tests on a GPU."""

import io
import itertools
import warnings

import torch
from torch import nn

from flambeau.protocol.signature import Signature
from tests.fixtures.signatures import one_to_one

FEATURES = 64
IMAGE = (3, 32, 32)


def signature(max_batch_size: int = 32) -> Signature:
    """FP32 `x` [-1, FEATURES] to FP32 `y` of the same shape."""
    return one_to_one((FEATURES,), rows=max_batch_size)


def torchscript(module: nn.Module, *example: torch.Tensor) -> bytes:
    """A module's file: traced with the example if there is one, or else scripted."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        module.eval()
        program = torch.jit.trace(module, example) if example else torch.jit.script(module)  # type: ignore[no-untyped-call]
        torch.jit.save(program, buffer)
    return buffer.getvalue()


def perceptron() -> nn.Module:
    """Three layers, always the same."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(3):
        layers += [nn.Linear(FEATURES, FEATURES), nn.ReLU()]
    return nn.Sequential(*layers)


def convolutions() -> nn.Module:
    """Four layers of `IMAGE` to `IMAGE` with as many channels as real networks, always the same."""
    torch.manual_seed(0)
    channels = [IMAGE[0], 64, 128, 128, IMAGE[0]]
    layers: list[nn.Module] = []
    for before, behind in itertools.pairwise(channels):
        layers += [nn.Conv2d(before, behind, 3, padding=1), nn.BatchNorm2d(behind), nn.ReLU()]
    return nn.Sequential(*layers[:-1]).eval()


class WaitsForGpu(nn.Module):
    """`y = 2 x`, or `y = 3 x` if the first element is over 1000: it looks, so it has to wait."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """FP32 [N, D] to the same."""
        return x * 3 if bool(x[0, 0] > 1000) else x * 2


class Hungry(nn.Module):
    """`y = 2 x`; takes 4 TiB first if the batch has 3 rows."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """FP32 [N, D] to the same."""
        if x.shape[0] == 3:
            x = x + torch.zeros([1 << 40], device=x.device)[0]
        return x * 2
