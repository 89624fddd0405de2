"""A residual CNN for images of any size: dilated, grouped and depthwise convolutions.

Shapes: N rows, C channels, H x W pixels, K classes.
"""

import torch
from torch import Tensor, nn


class ResidualCnn(nn.Module):
    """Four residual blocks after a stem that halves the image; about 13 thousand parameters.

    The last feature map, of any size, is pooled to 1 x 1 twice: its mean measures how much of a
    pattern there is, its maximum that it is there at all, for any amount of empty canvas around
    it. Pooling to more than 1 x 1 would fix the size of the image in an exported graph.

    Args:
        width: channels C of the stem; the last blocks have twice as many.
        groups: groups of the grouped convolution; divides `width`.
        classes: number of classes K.
    """

    def __init__(self, width: int = 24, groups: int = 4, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Sequential(*_convolution(1, width, 5, stride=2), nn.ReLU())
        self.blocks = nn.Sequential(
            _Residual(*_convolution(width, width, 3)),  # [N, C, H / 2, W / 2]
            _Residual(*_convolution(width, width, 3, groups=groups), _Shuffle(groups)),
            nn.Sequential(*_convolution(width, 2 * width, 3, stride=2), nn.ReLU()),  # H / 4
            _Residual(*_convolution(2 * width, 2 * width, 3, dilation=2)),
            _Residual(  # depthwise, then pointwise
                *_convolution(2 * width, 2 * width, 3, groups=2 * width),
                nn.ReLU(),
                *_convolution(2 * width, 2 * width, 1),
            ),
        )
        self.mean = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(4 * width, classes)

    def forward(self, image: Tensor) -> Tensor:
        """Maps images FP32 [N, 1, H, W] to logits [N, K]."""
        features = self.blocks(self.stem(image))  # [N, 2C, H / 4, W / 4]
        pooled = torch.cat([self.mean(features).flatten(1), features.amax(dim=(2, 3))], dim=1)
        logits: Tensor = self.head(pooled)
        return logits


class _Residual(nn.Module):
    """A residual connection around the layers, with ReLU."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, features: Tensor) -> Tensor:
        return torch.relu(features + self.layers(features))


class _Shuffle(nn.Module):
    """Interleaves the channels of all groups, as in ShuffleNet (Zhang et al., 2018)."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.groups = groups

    def forward(self, features: Tensor) -> Tensor:
        rows, _, height, width = features.shape
        split = features.reshape(rows, self.groups, -1, height, width)  # [N, G, C / G, H, W]
        return split.transpose(1, 2).flatten(1, 2)


def _convolution(
    channels_in: int,
    channels_out: int,
    kernel: int,
    stride: int = 1,
    dilation: int = 1,
    groups: int = 1,
) -> tuple[nn.Module, ...]:
    """Makes a convolution that changes the size by its stride only, and its foldable norm."""
    padding = dilation * (kernel // 2)
    convolution = nn.Conv2d(
        channels_in, channels_out, kernel, stride, padding, dilation, groups, bias=False
    )
    return convolution, nn.BatchNorm2d(channels_out)
