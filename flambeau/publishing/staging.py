"""The folder in which a captured model waits for our process: its files and `request.json`.

The reader is `training/importing/request.py`; both sides are one release.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flambeau.protocol.tensors import Array

REQUEST, EXAMPLES = "request.json", "examples.safetensors"


def write_request(
    folder: Path,
    request: Mapping[str, Any],
    inputs: Sequence[Mapping[str, Array]],
    outputs: Sequence[Mapping[str, Array]],
    targets: Array | None,
) -> None:
    """Writes what our process reads.

    Args:
        folder: the folder.
        request: fields of `training.importing.request.ImportRequest`.
        inputs: inputs of each example, the first one's rows and those at other sizes.
        outputs: outputs of each example.
        targets: labels of the first example's rows, if any.
    """
    from safetensors.numpy import save_file  # noqa: TID251 - the arrays are made contiguous

    tensors: dict[str, Array] = {}
    for number, (given, found) in enumerate(zip(inputs, outputs, strict=True)):
        for side, arrays in (("input", given), ("output", found)):
            for name, array in arrays.items():
                tensors[f"{number}.{side}.{name}"] = np.ascontiguousarray(array)
    if targets is not None:
        tensors["targets"] = np.ascontiguousarray(targets)
    save_file(tensors, folder / EXAMPLES)
    (folder / REQUEST).write_text(json.dumps(request, indent=2), encoding="utf-8")
