"""magika, which tells the type of a file from its bytes: an ONNX network behind a Python model.

Needs `pip install magika==1.0.3`. The network and its settings are read from that package.
"""

import json
import sysconfig
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from magika import Magika

import flambeau

MODEL = Path(str(resources.files("magika"))) / "models/standard_v3_3"


class FileType:
    """Tells the type of files from their first and last bytes."""

    def load(self, context: flambeau.Context) -> None:
        """Opens the network and its settings."""
        self.network = context.network("model.onnx")
        self.settings = json.loads(context.files["config.min.json"].read_text())
        self.labels = np.array(self.settings["target_labels_space"], object)

    def infer(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the most likely `label` of each file, and its `score`."""
        rows = np.stack([self.features(content) for content in inputs["content"]])
        scores = self.network(bytes=rows)["target_label"]
        return {"label": list(self.labels[scores.argmax(1)]), "score": scores.max(1)}

    def features(self, content: bytes) -> Any:
        """Returns 1024 bytes from the begin and 1024 to the end, without the space around."""
        size, block = self.settings["beg_size"], self.settings["block_size"]
        row = np.full(2 * size, self.settings["padding_token"], np.int32)
        begin, end = content[:block].lstrip()[:size], content[-block:].rstrip()[-size:]
        row[: len(begin)] = np.frombuffer(begin, np.uint8)
        row[len(row) - len(end) :] = np.frombuffer(end, np.uint8)
        return row


def main() -> None:
    """Publishes the model, and compares its answers about files of this machine with magika's."""
    library = Path(sysconfig.get_path("stdlib"))
    files = sorted(library.glob("*.py"))[:40] + sorted(MODEL.iterdir())
    files += sorted((library / "lib-dynload").glob("*.so"))[:4]
    contents = [file.read_bytes()[:65_536] for file in files]
    sides = [MODEL / "model.onnx", MODEL / "config.min.json"]
    flambeau.publish(FileType, {"content": contents[:36]}, name="file-type", files=sides)

    with flambeau.load("file-type") as file_type:
        found = file_type(content=contents)
    right = [Magika().identify_bytes(content) for content in contents]
    same = [
        label.decode() == one.dl.label for label, one in zip(found["label"], right, strict=True)
    ]
    gap = np.abs(found["score"] - [one.score for one in right]).max()
    print("labels:", ", ".join(sorted({label.decode() for label in found["label"]})))
    print(f"{sum(same)} of {len(same)} labels as magika's; largest difference of a score {gap:.1e}")
    assert all(same)
    assert gap < 2e-3  # onnxruntime itself gives one row up to 8e-4 another score than several


if __name__ == "__main__":
    main()
