"""Code that a recipe may name, each piece broken in its own way."""

from typing import Any

import torch
from torch import Tensor, nn


class Net(nn.Module):
    """A correct network: four features to three classes."""

    def __init__(self, norm: bool = False) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.norm = nn.BatchNorm1d(8) if norm else nn.Identity()
        self.second = nn.Linear(8, 3)

    def forward(self, features: Tensor) -> Any:
        return self.second(torch.relu(self.norm(self.first(features))))


made_already = Net()


class MixesRows(Net):
    """Its output for a row depends on the other rows."""

    def forward(self, features: Tensor) -> Any:
        found = super().forward(features)
        return found - 3 * found.mean(0)


class WithoutParameters(nn.Module):
    def forward(self, features: Tensor) -> Tensor:
        return features[:, :3]


class LearnsNothing(Net):
    def __init__(self) -> None:
        super().__init__()
        self.requires_grad_(False)


class FailsWhenMade(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = layer_of(0)


def layer_of(width: int) -> nn.Module:
    return nn.Linear(4, 3 // width)


class EndsTheProcess(nn.Module):
    def __init__(self) -> None:
        raise SystemExit(3)


class ForgetsToBegin(nn.Module):
    def __init__(self) -> None:
        self.layer = nn.Linear(4, 3)


class FailsInForward(Net):
    def forward(self, features: Tensor) -> Any:
        return self.second(features)


class FailsInTraining(Net):
    def forward(self, features: Tensor) -> Any:
        if self.training:
            raise KeyError("teacher")
        return super().forward(features)


class FailsForManyRows(Net):
    def forward(self, features: Tensor) -> Any:
        if not self.training and len(features) > 8:
            raise KeyError("many")
        return super().forward(features)


class _Backward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        raise LookupError("no gradient")


class FailsInBackward(Net):
    def forward(self, features: Tensor) -> Any:
        return _Backward.apply(super().forward(features))  # type: ignore[no-untyped-call]


class ReturnsMapping(Net):
    def forward(self, features: Tensor) -> Any:
        return {"classes": super().forward(features)}


class ReturnsNothing(Net):
    def forward(self, features: Tensor) -> Any:
        return None


class Answers(Net):
    """Classes, and something that no server can answer with."""

    def __init__(self, kind: str, first: bool = False) -> None:
        super().__init__()
        self.kind, self.is_first = kind, first

    def forward(self, features: Tensor) -> Any:
        y = super().forward(features)
        odd = {
            "bf16": lambda: y.bfloat16(),
            "float8": lambda: y.to(torch.float8_e5m2),
            "complex": lambda: torch.complex(y, y),
            "sparse": lambda: y.to_sparse(),  # type: ignore[no-untyped-call]
            "none": lambda: None,
            "list": lambda: ["a"] * len(y),
            "scalar": lambda: y.mean(),
            "constant": lambda: torch.ones(5),
            "turned": lambda: y.t(),
            "vary": lambda: y[y > y.median()],
            "cut": lambda: y[:8],
            "square": lambda: y @ y.t(),
            "squeezed": lambda: y[:, :1].squeeze(),
            "random": lambda: y + torch.rand(3),
            "random numbers": lambda: torch.randint(9, (len(y), 40)),
        }[self.kind]()
        return odd if self.is_first else (y, odd)


class CutsTheGradient(Net):
    def forward(self, features: Tensor) -> Any:
        return super().forward(features).detach()


class ChangesItsInput(Net):
    def forward(self, features: Tensor) -> Any:
        features += 1
        return super().forward(features)


class IsLazy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LazyLinear(3)

    def forward(self, features: Tensor) -> Any:
        return self.layer(features)


class HasViews(Net):
    """Something of it lies in the memory of something else."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        if kind == "expanded":
            self.register_buffer("view", torch.ones(1).expand(3))
        elif kind == "slice":
            self.register_buffer("view", torch.ones(9)[:3])
        elif kind == "turned":
            self.view = nn.Parameter(self.second.weight.t())
        elif kind == "tied":
            self.third = nn.Linear(8, 3)
            self.third.weight = self.second.weight
        self.kind = kind


class HasNoTwin(Net):
    def export_twin(self) -> nn.Module:
        raise ValueError("no twin")


def no_data(seed: int) -> Any:
    raise OSError("disk on fire")


def no_loss() -> Any:
    raise ValueError("no loss")


def failing_loss() -> Any:
    return lambda logits, labels: logits.nothing


def no_weights(inputs: Any, labels: Any) -> Any:
    raise ValueError("no weights")


def no_change(row: Any, random: Any) -> Any:
    raise ValueError("no change")


class NoStep(nn.Module):
    def __init__(self) -> None:
        raise ValueError("no step")


class FailingStep(nn.Module):
    def forward(self, features: Tensor) -> Any:
        raise ValueError("no forward")


class PythonStep:
    def __call__(self, inputs: Any) -> Any:
        raise KeyError("words")


def recipe() -> Any:
    from training.recipe.recipe import Recipe

    return Recipe.model_validate({"name": "broken", "model": {"target": Net}})
