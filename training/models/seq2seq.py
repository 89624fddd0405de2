"""A GRU encoder of elements and a GRU decoder of symbols, with attention between.

In training the decoder gets the right symbol before it writes the next one (teacher forcing), or
at random its own. In serving it takes the likeliest symbol and stops at the end symbol.

Shapes: N rows, T elements of the longest, F features, D hidden features, U symbols at most,
V kinds of symbols.
"""

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from training.models.masked_recurrent import MaskedRecurrent


class Seq2Seq(nn.Module):
    """Bidirectional GRU encoder, attention (Luong et al., 2015: dot product), GRU decoder.

    Args:
        features: numbers of one element, F.
        symbols: kinds of symbols V; the last one means the end.
        longest: maximum number of symbols, the end symbol included: U.
        hidden: hidden features D of each encoder direction and of the decoder.
    """

    def __init__(
        self, features: int = 8, symbols: int = 11, longest: int = 4, hidden: int = 64
    ) -> None:
        super().__init__()
        self.longest, self.end = longest, symbols - 1
        self.encoder = nn.GRU(features, hidden, batch_first=True, bidirectional=True)
        self.first_state = nn.Linear(2 * hidden, hidden)
        self.step = DecoderStep(symbols, hidden)
        self.closed: Tensor
        self.register_buffer("closed", torch.eye(symbols)[self.end], persistent=False)

    def forward(
        self,
        elements: Tensor,
        lengths: Tensor,
        targets: Tensor | None = None,
        teacher_forcing: float = 0.0,
    ) -> Tensor:
        """Encodes the elements, and decodes symbols.

        Args:
            elements: FP32 [N, T, F].
            lengths: INT64 [N], 1 to T.
            targets: INT64 [N, U], in training only; values below 0 do not count.
            teacher_forcing: share of symbols that the decoder gets from the targets, 0 to 1.

        Returns:
            Logits [N, U, V]. Without targets, all symbols after a row's end symbol are end symbols
            too, with logits 1 and 0.
        """
        rows = pack_padded_sequence(elements, lengths, batch_first=True, enforce_sorted=False)
        packed, final = self.encoder(rows)
        memory, _ = pad_packed_sequence(packed, batch_first=True, total_length=elements.shape[1])
        state = self.begin(torch.cat([final[0], final[1]], dim=1))
        real = real_elements(memory, lengths)
        if targets is None:
            return self.write(memory, real, state)
        return self._rehearse(memory, real, state, targets.clamp(min=0), teacher_forcing)

    def begin(self, final: Tensor) -> Tensor:
        """Returns the decoder's first state [N, D] from the encoder's last ones [N, 2D]."""
        return torch.tanh(self.first_state(final))

    def export_twin(self) -> nn.Module:
        """Returns the same function, same weights: masked encoder, decoder in a `while_loop`."""
        return _LoopedSeq2Seq(self)

    def _rehearse(
        self, memory: Tensor, real: Tensor, state: Tensor, targets: Tensor, share: float
    ) -> Tensor:
        symbol = torch.full_like(targets[:, 0], self.step.start)  # [N]
        found = []
        for right in targets.unbind(1):
            logits, state = self.step(symbol, state, memory, real)
            found.append(logits)
            told = torch.rand(len(right), device=right.device) < share
            symbol = torch.where(told, right, logits.argmax(dim=1))
        return torch.stack(found, dim=1)

    def write(self, memory: Tensor, real: Tensor, state: Tensor) -> Tensor:
        """Returns logits [N, U, V], decoded one symbol after the other.

        Args:
            memory: the encoder's outputs [N, T, 2D].
            real: BOOL [N, T], True for real elements.
            state: the decoder's first state [N, D].
        """
        symbol = torch.full_like(real[:, 0], self.step.start, dtype=torch.int64)  # [N]
        ended = torch.zeros_like(real[:, 0])
        found = []
        for _ in range(self.longest):
            logits, state = self.step(symbol, state, memory, real)
            found.append(torch.where(ended[:, None], self.closed, logits))
            symbol = found[-1].argmax(dim=1)
            ended = ended | (symbol == self.end)
        return torch.stack(found, dim=1)


class DecoderStep(nn.Module):
    """Maps one symbol to the logits of the next one.

    Args:
        symbols: kinds of symbols V; one more stands for the start.
        hidden: hidden features D.
    """

    def __init__(self, symbols: int, hidden: int) -> None:
        super().__init__()
        self.start = symbols
        self.embed = nn.Embedding(symbols + 1, hidden)
        self.cell = nn.GRUCell(hidden, hidden)
        self.query = nn.Linear(hidden, 2 * hidden, bias=False)
        self.combine = nn.Linear(3 * hidden, hidden)
        self.head = nn.Linear(hidden, symbols)

    def forward(
        self, symbol: Tensor, state: Tensor, memory: Tensor, real: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Makes one step.

        Args:
            symbol: INT64 [N], the previous symbol.
            state: FP32 [N, D].
            memory: the encoder's outputs [N, T, 2D].
            real: BOOL [N, T], True for real elements.

        Returns:
            Logits [N, V] and the next state [N, D].
        """
        state = self.cell(self.embed(symbol), state)
        scores = (memory @ self.query(state)[:, :, None])[:, :, 0]  # [N, T]
        weights = scores.masked_fill(~real, float("-inf")).softmax(dim=1)
        context = (weights[:, None, :] @ memory)[:, 0]  # [N, 2D]
        mixed = torch.tanh(self.combine(torch.cat([state, context], dim=1)))
        return self.head(mixed), state


def real_elements(memory: Tensor, lengths: Tensor) -> Tensor:
    """Returns BOOL [N, T] for [N, T, *]: True up to each row's length."""
    return torch.arange(memory.shape[1], device=memory.device)[None] < lengths[:, None]


class _LoopedSeq2Seq(nn.Module):
    """Decodes until every row has ended: as many steps as the longest output takes, not U."""

    def __init__(self, model: Seq2Seq) -> None:
        super().__init__()
        self.encoder, self.model = MaskedRecurrent(model.encoder), model

    def forward(self, elements: Tensor, lengths: Tensor) -> Tensor:
        from torch._higher_order_ops.while_loop import while_loop

        model, end, longest = self.model, self.model.end, self.model.longest
        memory, final = self.encoder(elements, lengths)
        real = real_elements(memory, lengths)
        # A trace has no loop: it writes all U symbols.
        if torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
            return model.write(memory, real, model.begin(final))
        places = torch.arange(longest, device=elements.device)[None, :, None]  # [1, U, 1]

        def goes_on(number: Tensor, symbol: Tensor, state: Tensor, found: Tensor) -> Tensor:
            return (number < longest) & (symbol != end).any()

        def write(
            number: Tensor, symbol: Tensor, state: Tensor, found: Tensor
        ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
            logits, state = model.step(symbol, state, memory, real)
            logits = torch.where((symbol == end)[:, None], model.closed, logits)
            found = torch.where(places == number, logits[:, None], found)
            return number + 1, logits.argmax(dim=1), state, found

        begin = (
            torch.zeros((), dtype=torch.int64, device=elements.device),
            torch.full_like(lengths, model.step.start, dtype=torch.int64),
            model.begin(final),
            model.closed.expand(elements.shape[0], longest, -1).clone(),
        )
        logits: Tensor = while_loop(goes_on, write, begin)[3]  # type: ignore[no-untyped-call]
        return logits
