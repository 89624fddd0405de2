"""A Transformer encoder that classifies rows of tokens of different lengths.

Its blocks are written out on `scaled_dot_product_attention`, which every exporter supports. That is
not true of `nn.TransformerEncoder`, whose fast path reads weights outside the exported graph.

Shapes: N rows, T tokens, D features of a token, H heads, K classes.
"""

from torch import Tensor, nn
from torch.nn import functional


class EncoderClassifier(nn.Module):
    """Embeddings, pre-norm blocks, and the mean of the real tokens.

    Args:
        vocabulary: number of token ids, from 0.
        longest: the maximum number of tokens of a row.
        width: features of a token, D.
        heads: heads of each attention, H; divides `width`.
        layers: number of blocks.
        classes: number of classes K.
        dropout: share of features dropped in each block, in training only.
    """

    def __init__(
        self,
        vocabulary: int,
        longest: int,
        width: int = 48,
        heads: int = 4,
        layers: int = 2,
        classes: int = 10,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(longest, width)
        self.blocks = nn.ModuleList(_Block(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Maps INT64 [N, T] and BOOL [N, T], True for real tokens, to logits [N, K]."""
        features = self.token(tokens) + self.position.weight[: tokens.shape[1]]  # [N, T, D]
        seen = mask[:, None, None, :]  # [N, 1, 1, T]: every token attends to the real ones
        for block in self.blocks:
            features = block(features, seen)
        real = mask[:, :, None].to(features.dtype)  # [N, T, 1]
        mean = (self.norm(features) * real).sum(dim=1) / real.sum(dim=1)  # [N, D]
        logits: Tensor = self.head(mean)
        return logits


class _Block(nn.Module):
    """Attention, then two linear layers, each after a norm, with residual connections."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, features: Tensor, seen: Tensor) -> Tensor:
        features = features + self.dropout(self._attend(self.norm1(features), seen))
        added: Tensor = self.dropout(self.narrow(functional.gelu(self.widen(self.norm2(features)))))
        return features + added

    def _attend(self, features: Tensor, seen: Tensor) -> Tensor:
        split = self.query_key_value(features).unflatten(2, (3, self.heads, -1))  # [N, T, 3, H, *]
        query, key, value = split.permute(2, 0, 3, 1, 4).unbind(0)  # each [N, H, T, D / H]
        found = functional.scaled_dot_product_attention(query, key, value, attn_mask=seen)
        projected: Tensor = self.project(found.transpose(1, 2).flatten(2))
        return projected
