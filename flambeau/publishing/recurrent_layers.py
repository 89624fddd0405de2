"""Keeps recurrent layers whole while torch exports a program.

LSTM and GRU layers stay one operator each, so that their length can vary: by default torch.export
unrolls them over the length of the example. Source: `torch.export._patches`.
"""

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def whole_recurrent_layers() -> Iterator[None]:
    """Exports LSTM and GRU as one operator, and compiles them as loops over the sequence."""
    from torch.export._patches import (
        register_gru_while_loop_decomposition,
        register_lstm_while_loop_decomposition,
    )

    with register_lstm_while_loop_decomposition(), register_gru_while_loop_decomposition():
        for operator in (torch.ops.aten.lstm.input, torch.ops.aten.gru.input):
            operator._dispatch_cache.clear()  # otherwise cached implementations would run
        yield
