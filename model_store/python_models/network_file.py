"""Networks among the side files of a Python model, which `context.network` opens."""

from pathlib import Path

from model_store.artifact_kinds import STORED_KINDS


def read_network(path: Path) -> bytes:
    """Reads an ONNX file.

    Args:
        path: the file, whose digest was verified.

    Raises:
        ValueError: it is not ONNX.
        StoreError: it refers to more than its own bytes.
    """
    if path.suffix != ".onnx":
        raise ValueError(
            f"'{path.name}' is no .onnx file, and context.network opens no other; open it by the "
            f"library that reads it, at context.files['{path.name}']"
        )
    data = path.read_bytes()
    STORED_KINDS["onnx"].check(data, path.name)
    return data
