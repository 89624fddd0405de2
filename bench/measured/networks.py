"""The measured networks. Plain torch: no import of ours, so that peers can load them.

Shapes: N rows, T tokens, D features of a token, H heads, K = 10 classes. The batch comes first and
may have any size.
"""

from torch import Tensor, nn
from torch.nn import functional

CLASSES = 10
VOCABULARY = 1000
MASKED = -1e4
"""Added to the score of masked tokens: their softmax is 0 in FP32, and a row without any real token
gives numbers instead of the NaN that minus infinity would give."""


class TinyMlp(nn.Module):
    """64 → 256 → 10: almost no work, so that the server is what is measured."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, CLASSES))

    def forward(self, features: Tensor) -> Tensor:
        """Maps FP32 [N, 64] to logits [N, K]."""
        logits: Tensor = self.layers(features)
        return logits


class Cnn(nn.Module):
    """Ten convolutions for images of 64 x 64: 2.9 million parameters, 0.4 G multiply-adds a row."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *_convolution(3, 32),  # [N, 32, 64, 64]
            *_convolution(32, 64),
            *_convolution(64, 64, stride=2),  # [N, 64, 32, 32]
            *_convolution(64, 128),
            *_convolution(128, 128, stride=2),  # [N, 128, 16, 16]
            *_convolution(128, 256),
            *_convolution(256, 256, stride=2),  # [N, 256, 8, 8]
            *_convolution(256, 256),
            *_convolution(256, 256),
            *_convolution(256, 256),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        self.head = nn.Linear(256, CLASSES)

    def forward(self, image: Tensor) -> Tensor:
        """Maps FP32 [N, 3, 64, 64] to logits [N, K]."""
        logits: Tensor = self.head(self.features(image))
        return logits


class Encoder(nn.Module):
    """A transformer encoder of 6 layers, D = 384, for exactly 64 tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.body = TokenEncoder(layers=6, width=384, heads=6, longest=64)
        self.head = nn.Linear(384, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        """Maps INT64 [N, 64], each below 1000, to logits [N, K]."""
        logits: Tensor = self.head(self.body(tokens).mean(dim=1))
        return logits


class TextEncoder(nn.Module):
    """A small sentence classifier, one layer, D = 32, for 1 to 128 tokens.

    Small enough that batching pays: a wider network gains nothing from batches on one thread.
    """

    def __init__(self) -> None:
        super().__init__()
        self.body = TokenEncoder(layers=1, width=32, heads=2, longest=128)
        self.head = nn.Linear(32, CLASSES)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Maps INT64 [N, T] and BOOL [N, T], True for real tokens, to logits [N, K]."""
        real = mask.to(self.head.weight.dtype)  # [N, T]
        bias = (1 - real)[:, None, None, :] * MASKED  # [N, 1, 1, T]
        features = self.body(tokens, bias) * real[:, :, None]  # [N, T, D]
        count = real.sum(dim=1, keepdim=True).clamp(min=1)  # [N, 1]
        logits: Tensor = self.head(features.sum(dim=1) / count)
        return logits


class TokenEncoder(nn.Module):
    """Embeddings and pre-norm transformer layers.

    Args:
        layers: number of layers.
        width: features of a token, D.
        heads: heads of each attention, H.
        longest: number of positions, the longest input in tokens.
    """

    def __init__(self, layers: int, width: int, heads: int, longest: int) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, width)
        self.position = nn.Embedding(longest, width)
        self.layers = nn.ModuleList(_Layer(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: Tensor, bias: Tensor | None = None) -> Tensor:
        """Maps tokens [N, T] and an attention bias [N, 1, 1, T] to features [N, T, D]."""
        features = self.token(tokens) + self.position.weight[: tokens.shape[1]]
        for layer in self.layers:
            features = layer(features, bias)
        normed: Tensor = self.norm(features)
        return normed


class _Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.widen = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, features: Tensor, bias: Tensor | None) -> Tensor:
        features = features + self._attend(self.norm1(features), bias)
        added: Tensor = self.narrow(functional.relu(self.widen(self.norm2(features))))
        return features + added

    def _attend(self, features: Tensor, bias: Tensor | None) -> Tensor:
        split = self.query_key_value(features).unflatten(2, (3, self.heads, -1))  # [N, T, 3, H, *]
        query, key, value = split.permute(2, 0, 3, 1, 4).unbind(0)  # each [N, H, T, D / H]
        found = functional.scaled_dot_product_attention(query, key, value, attn_mask=bias)
        projected: Tensor = self.project(found.transpose(1, 2).flatten(2))
        return projected


def _convolution(channels_in: int, channels_out: int, stride: int = 1) -> tuple[nn.Module, ...]:
    return (
        nn.Conv2d(channels_in, channels_out, 3, stride=stride, padding=1, bias=False),
        # The running averages follow fast: they are accurate after a training of few steps.
        nn.BatchNorm2d(channels_out, momentum=0.3),
        nn.ReLU(),
    )
