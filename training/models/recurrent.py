"""A bidirectional LSTM or GRU classifier for rows of different lengths.

Shapes: N rows, T elements of the longest, F features, D hidden features, K classes.
"""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from training.models.masked_recurrent import Cell, MaskedRecurrent


class RecurrentClassifier(nn.Module):
    """Reads a row in both directions and classifies it by the two last states.

    Training packs the rows, so that no step is spent on padding.

    Args:
        features: numbers of one element, F.
        hidden: hidden features of one direction, D.
        layers: recurrent layers on top of each other.
        classes: number of classes K.
        cell: kind of the recurrent layer.
        dropout: share of the last states dropped, in training only.
    """

    def __init__(
        self,
        features: int = 8,
        hidden: int = 32,
        layers: int = 1,
        classes: int = 10,
        cell: Literal["lstm", "gru"] = "lstm",
        dropout: float = 0.2,
    ) -> None:
        super().__init__()
        kind = {"lstm": nn.LSTM, "gru": nn.GRU}[cell]
        self.recurrent: Cell = kind(features, hidden, layers, batch_first=True, bidirectional=True)
        self.head = nn.Sequential(nn.Dropout(dropout), nn.Linear(2 * hidden, classes))

    def forward(self, elements: Tensor, lengths: Tensor) -> Tensor:
        """Maps FP32 [N, T, F] and INT64 [N], 1 to T, to logits [N, K]."""
        rows = pack_padded_sequence(elements, lengths, batch_first=True, enforce_sorted=False)
        state = self.recurrent(rows)[1]  # [2 * layers, N, D]; the LSTM's is a pair
        hidden = state[0] if isinstance(state, tuple) else state
        logits: Tensor = self.head(torch.cat([hidden[-2], hidden[-1]], dim=1))
        return logits

    def export_twin(self) -> nn.Module:
        """Returns the same function with the same weights, with a mask."""
        return _MaskedClassifier(MaskedRecurrent(self.recurrent), self.head)


class _MaskedClassifier(nn.Module):
    def __init__(self, recurrent: MaskedRecurrent, head: nn.Module) -> None:
        super().__init__()
        self.recurrent, self.head = recurrent, head

    def forward(self, elements: Tensor, lengths: Tensor) -> Tensor:
        logits: Tensor = self.head(self.recurrent(elements, lengths)[1])
        return logits
