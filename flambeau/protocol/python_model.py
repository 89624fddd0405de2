"""Python models: the class that a user writes to answer requests, and the context that it is given.

A Python model is a plain class; nothing of flambeau is inherited. Its file may import any package
that is installed where the model is served.

    class Spam:
        def load(self, context: flambeau.Context) -> None:
            self.words = context.files["words.txt"].read_text().split()
            self.scores = context.network("scores.onnx")

        def infer(self, inputs):
            return {"is_spam": ...}

Methods, each a function or `async def`:

- `load(context)`, optional: called once, before any request. Keep in `self` what answers need.
- `infer(inputs)`: answers a batch. `inputs` has an array by input name, [rows, ...]; text and other
  BYTES are arrays of `bytes`. Returns an array or list by output name, one element for each row. A
  model with a single output may return it alone. `str`, `bytes` and lists of them become BYTES.
- `infer_one(**row)`, in place of `infer`: answers one row, given as keywords without the batch
  dimension: `bytes`, a number, or an array [...]. Returns the same for one row. The rows of a batch
  are passed to it one after another; to an `async def`, all at once.
- `close()`, optional: called when the model is unloaded.

A generator, `def` or `async def`, gives many answers, one for each `yield`. One that is `infer_one`
takes one row at a time, so its version has a `max_batch_size` of 1. Verification compares its last
answer.

Rules:
- inputs are read-only; copy an array before you change it;
- return new arrays: what was returned must not change later;
- one thread calls all methods, one call at a time; `async def` runs on one event loop, which runs
  only during a call;
- a ValueError refuses the input: the caller gets its text, with status 400 or INVALID_ARGUMENT. Any
  other exception is a fault of the model: the caller gets its last line, and the log the traceback;
- a batch that fails is run again request by request, so a bad row fails its own request alone;
- equal inputs give equal answers, and a row's answer does not depend on the rows beside it; this is
  verified when the model is published, and its recorded answers are replayed whenever it is loaded.

By default a Python model runs in a process of its own. There it may print (the output joins the
server's log) and import its further `.py` side files by their names.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flambeau.protocol.strict import nearest_name
from flambeau.protocol.tensors import Array

Network = Callable[..., dict[str, Array]]
"""Runs a network on arrays by input name, as one mapping or as keywords; returns every output."""

_OPENED_BY = {
    ".pt": "as TorchScript by torch.jit.load({})",
    ".pt2": "by torch.export.load({}).module()",
    ".safetensors": "by safetensors.numpy.load_file({})",
    ".xml": "by openvino.Core().compile_model({})",
}
"""Calls that open files of other kinds, by suffix: their outputs have no names, or their libraries
take other arrays, so a class calls them itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The surroundings of a Python model; given to its `load`."""

    files: Mapping[str, Path]
    """Paths of its side files by name, in a private folder that is removed with the model."""
    args: Mapping[str, Any]
    """Its settings, as published."""
    device: str
    """Device that it serves on: `cpu` or `cuda:N`."""
    logger: logging.Logger
    """Writes to the server's log."""
    open_network: Callable[[Path], Network]
    """Opens a file as `network` does."""

    def network(self, name: str) -> Network:
        """Opens a side file as a network, which runs as one thread of this process.

        Args:
            name: name of an ONNX file among `files`.

        Raises:
            ValueError: there is no such file, or it is not ONNX.
        """
        if name not in self.files:
            raise ValueError(
                f"there is no side file '{name}'{nearest_name(name, self.files)}; "
                "publish it with the model"
            )
        path = self.files[name]
        if path.suffix != ".onnx":
            how = _OPENED_BY.get(path.suffix, "by the library that reads it: {}")
            raise ValueError(
                f"'{name}' is no .onnx file, and context.network opens no other; open it in load, "
                + how.format(f"context.files['{name}']")
            )
        return self.open_network(path)
