"""A multilayer perceptron for rows of numbers.

Shapes: N rows, F features, K classes.
"""

from collections.abc import Sequence

from torch import Tensor, nn

FARTHEST = 4.0
"""Standard deviations from the mean at which a feature's value is clamped."""


class Mlp(nn.Module):
    """Linear layers with ReLU between them, for features in any units.

    The first layer learns each feature's mean and spread from the training rows, so that clients
    send features as measured.

    Args:
        features: number of features F.
        hidden: width of each hidden layer.
        classes: number of classes K, or of numbers in the output.
        dropout: share of hidden features dropped, in training only.
        mean: mean of labels that are numbers; the layers' results are around 0.
        spread: standard deviation of labels that are numbers.
    """

    def __init__(
        self,
        features: int = 30,
        hidden: Sequence[int] = (64, 32),
        classes: int = 2,
        dropout: float = 0.1,
        mean: float = 0.0,
        spread: float = 1.0,
    ) -> None:
        super().__init__()
        self.mean, self.spread = mean, spread
        # Some features vary by thousandths: the usual epsilon would be larger than their variance.
        self.standardise = nn.BatchNorm1d(features, eps=1e-12, affine=False)
        widths = [features, *hidden]
        layers: list[nn.Module] = []
        for width_in, width_out in zip(widths, hidden, strict=False):
            layers += [nn.Linear(width_in, width_out), nn.ReLU(), nn.Dropout(dropout)]
        self.layers = nn.Sequential(*layers, nn.Linear(widths[-1], classes))

    def forward(self, features: Tensor) -> Tensor:
        """Maps features FP32 [N, F] to logits [N, K], or to numbers in the labels' unit."""
        # Outliers would use up most of the 8 bits of a quantized artifact.
        usual = self.standardise(features).clamp(-FARTHEST, FARTHEST)
        found: Tensor = self.layers(usual)
        if (self.mean, self.spread) == (0.0, 1.0):
            return found
        return found * self.spread + self.mean
