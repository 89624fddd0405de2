"""Networks that tests name as targets: exports build them anew in other processes."""

import os
import signal
import time

import torch
from torch import nn


class Perceptron(nn.Module):
    """Two layers for every token."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.layers(x).mean(dim=1)
        return logits


class Recurrent(nn.Module):
    """A layer that torch.export unrolls over the length it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.RNN(6, 8, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states, _ = self.layer(x)
        logits: torch.Tensor = self.head(states.mean(dim=1))
        return logits


class DependsOnData(nn.Module):
    """Takes another branch for bright images: nothing that a trace can hold."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, 3)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        if bool(image.sum() > 1e9):
            image = -image
        logits: torch.Tensor = self.head(image.flatten(1))
        return logits


class Misbehaving(nn.Module):
    """Does something terrible to the process that exports it, and to no other.

    Args:
        how: what.
        home: the process that may be harmed by nothing.
    """

    def __init__(self, how: str, home: int) -> None:
        super().__init__()
        self.head = nn.Linear(64, 3)
        if os.getpid() != home:
            getattr(self, how)()

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(image.flatten(1))
        return logits

    def die(self) -> None:
        """Kills the process, like a crash of native code."""
        print("last words", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

    def hang(self) -> None:
        """For ever."""
        time.sleep(1e6)

    def grow(self) -> None:
        """Asks for more than there may be."""
        torch.zeros(2**34)
