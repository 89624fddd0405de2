"""Networks among the side files of a Python model, which `context.network` opens."""

from pathlib import Path

from model_store.artifact_kinds import STORED_KINDS


def read_network(path: Path) -> bytes:
    """Reads an ONNX file, which `Context.network` has told by its suffix.

    Args:
        path: the file, whose digest was verified.

    Raises:
        StoreError: it refers to more than its own bytes.
    """
    data = path.read_bytes()
    STORED_KINDS["onnx"].check(data, path.name)
    return data
