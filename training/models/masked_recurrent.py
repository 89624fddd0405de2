"""A bidirectional LSTM or GRU over padded rows, without packing: the form that exporters support.

`torch.nn.utils.rnn.pack_padded_sequence` cannot be exported. Here each direction is a layer of its
own, and the backward one reads every row reversed within its own length, so that padding always
comes last and never affects a real element.

Shapes: N rows, T elements of the longest, F features, D hidden features.
"""

import torch
from torch import Tensor, nn

Cell = nn.LSTM | nn.GRU


class MaskedRecurrent(nn.Module):
    """The same function as a packed bidirectional layer, with the same weights.

    Args:
        packed: bidirectional and `batch_first`; its parameters are shared, not copied.
    """

    def __init__(self, packed: Cell) -> None:
        super().__init__()
        assert packed.bidirectional, "one direction alone needs no mask: padding comes after it"
        assert packed.batch_first, "the batch comes first everywhere"
        self.packed = packed

    def forward(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Reads every row in both directions.

        Args:
            features: FP32 [N, T, F].
            lengths: INT64 [N], 1 to T.

        Returns:
            The outputs of both directions [N, T, 2D], 0 after a row's end, and the last state of
            each direction of the last layer [N, 2D].
        """
        steps = torch.arange(features.shape[1], device=features.device)[None]  # [1, T]
        real = (steps < lengths[:, None])[:, :, None]  # [N, T, 1]
        order = torch.where(real[:, :, 0], lengths[:, None] - 1 - steps, steps)  # [N, T]
        last = (lengths - 1)[:, None]  # [N, 1]
        for level in range(self.packed.num_layers):
            left = self._read(features, f"_l{level}")  # [N, T, D]
            right = self._read(_reorder(features, order), f"_l{level}_reverse")
            final = torch.cat([_reorder(left, last), _reorder(right, last)], dim=2)[:, 0]
            features = torch.cat([left, _reorder(right, order)], dim=2) * real  # [N, T, 2D]
        return features, final

    def _read(self, features: Tensor, name: str) -> Tensor:
        """Runs one direction of one layer: [N, T, *] to [N, T, D]."""
        kinds = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")[: 4 if self.packed.bias else 2]
        weights = [getattr(self.packed, kind + name) for kind in kinds]
        shape = (1, features.shape[0], self.packed.hidden_size)
        start = features.new_zeros(shape)
        # The same call as in the layer's `forward`, without its size check, which stops a trace.
        settings = (self.packed.bias, 1, 0.0, False, False, True)
        if isinstance(self.packed, nn.LSTM):
            # Two tensors: a compiler's loop refuses states that are one tensor.
            starts = (start, features.new_zeros(shape))
            return torch.lstm(features, starts, weights, *settings)[0]
        return torch.gru(features, start, weights, *settings)[0]


def _reorder(features: Tensor, order: Tensor) -> Tensor:
    """Takes elements [N, T'] of every row of [N, T, F]."""
    return features.gather(1, order[:, :, None].expand(-1, -1, features.shape[2]))
