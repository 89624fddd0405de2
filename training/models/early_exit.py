"""A network that stops at sufficient confidence: control flow that depends on the data.

A row exits at the first stage whose confidence reaches the threshold, and the batch stops once all
rows have exited. The output of a row depends on that row alone, never on its batch-mates: they
decide only how long the batch runs. `torch.jit.script` keeps the loop; a trace could not.

Shapes: N rows, D features, S stages, K classes.
"""

import torch
from torch import Tensor, nn


class EarlyExit(nn.Module):
    """Stages of one linear layer, each with a head that may classify.

    In training each row exits at a random stage, so that every head is trained.

    Args:
        features: numbers of one row, the product of its dimensions.
        hidden: width D of every stage.
        stages: the maximum number of stages of a row, S.
        classes: number of classes K.
        threshold: the largest probability at which a row exits. Raise it for accuracy, lower it
            for speed.
    """

    def __init__(
        self,
        features: int = 64,
        hidden: int = 64,
        stages: int = 4,
        classes: int = 10,
        threshold: float = 0.95,
    ) -> None:
        super().__init__()
        self.threshold = threshold
        widths = [features] + [hidden] * (stages - 1)
        self.stages = nn.ModuleList(
            nn.Sequential(nn.Linear(width, hidden), nn.ReLU()) for width in widths
        )
        self.heads = nn.ModuleList(nn.Linear(hidden, classes) for _ in range(stages))

    def forward(self, image: Tensor) -> Tensor:
        """Maps FP32 [N, ...] to logits [N, K] of the stage where each row exited."""
        features = image.flatten(1)  # [N, D]
        left = torch.zeros(image.shape[0], dtype=torch.bool, device=image.device)
        drawn = torch.zeros(image.shape[0], dtype=torch.int64, device=image.device)
        if self.training:
            drawn = torch.randint_like(drawn, len(self.heads))
        logits = torch.zeros(0)
        for number, (stage, head) in enumerate(zip(self.stages, self.heads)):  # noqa: B905
            if not bool(left.all()):  # TorchScript unrolls the loop and supports no `break` there
                features = stage(features)
                found = head(features)  # [N, K]
                logits = found if number == 0 else torch.where(left[:, None], logits, found)
                if self.training:
                    left = drawn <= number
                else:
                    left = logits.softmax(dim=1).amax(dim=1) >= self.threshold
        return logits

    def export_twin(self) -> nn.Module:
        """Returns the function without control flow: all stages run, for hosts without loops."""
        return _EveryStage(self)


class _EveryStage(nn.Module):
    def __init__(self, model: EarlyExit) -> None:
        super().__init__()
        self.stages, self.heads, self.threshold = model.stages, model.heads, model.threshold

    def forward(self, image: Tensor) -> Tensor:
        features = self.stages[0](image.flatten(1))
        logits: Tensor = self.heads[0](features)
        for stage, head in zip(self.stages[1:], self.heads[1:], strict=True):
            features = stage(features)
            sure = logits.softmax(dim=1).amax(dim=1, keepdim=True) >= self.threshold
            logits = torch.where(sure, logits, head(features))
        return logits
