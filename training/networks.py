"""Networks that ship with flambeau. A recipe may name any other `torch.nn.Module` instead.

Shapes: N rows, C channels, K classes; images are [N, 1, 8, 8].
"""

from torch import Tensor, nn


class SmallCnn(nn.Module):
    """Three convolutions for 8 x 8 images: 31 thousand parameters at width 32.

    Every layer maps to a plain ONNX operator, and each norm follows its convolution, so that
    exporters fold it into the weights.

    Args:
        width: channels of the first two convolutions; the third has twice as many.
        dropout: share of features dropped before the last layer, in training only.
        classes: number of classes K.
    """

    def __init__(self, width: int = 32, dropout: float = 0.2, classes: int = 10) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *_convolution(1, width),  # [N, C, 8, 8]
            *_convolution(width, width),
            nn.MaxPool2d(2),  # [N, C, 4, 4]
            *_convolution(width, 2 * width),  # [N, 2C, 4, 4]
            nn.MaxPool2d(2),  # [N, 2C, 2, 2]
        )
        self.head = nn.Sequential(
            nn.Flatten(),  # [N, 8C]
            nn.Dropout(dropout),
            nn.Linear(2 * width * 2 * 2, classes),
        )

    def forward(self, image: Tensor) -> Tensor:
        """Maps images [N, 1, 8, 8] to logits [N, K]."""
        logits: Tensor = self.head(self.features(image))
        return logits


def _convolution(channels_in: int, channels_out: int) -> tuple[nn.Module, ...]:
    return (
        nn.Conv2d(channels_in, channels_out, kernel_size=3, padding=1, bias=False),
        nn.BatchNorm2d(channels_out),
        nn.ReLU(),
    )
