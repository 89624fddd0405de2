"""Five ways to bring a model, each published, verified, served and asked: `make demo-bring`.

A module in memory, an ONNX file, a TorchScript file, a class with a tokenizer, and a pipeline
go into a temporary store. A server of all five is asked over REST and gRPC, and each answer is
compared with that of the model itself. The command fails if a difference exceeds its bound.
"""

import json
import re
import subprocess
import sys
import tempfile
import time
import types
import urllib.request
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import flambeau

LENGTH = 8
"""Tokens of a text; shorter texts are padded."""
VOCABULARY = [
    "[PAD]", "[UNK]", "the", "model", "##s", "serv", "##ed", "##ing", "train", "is", "a", "fast",
    "##er", "slow", "##ly", "answer", "proof", "are", "not",
]  # fmt: skip
TEXTS = [
    "the model is served",
    "the models are trained slowly",
    "a faster answer is not a proof",
    "serving",
    "unknown words",
    "the proof",
]
DATATYPES = {"float32": "FP32", "int64": "INT64"}
ROUNDING = 1e-5
"""Bound of differences between two runtimes that compute in FP32."""


class Tokenizer:
    """Splits words into the longest pieces that a vocabulary file has (WordPiece)."""

    def load(self, context: flambeau.Context) -> None:
        """Reads the vocabulary: one piece a line, its number is that of the line."""
        pieces = context.files["vocab.txt"].read_text().split()
        self.numbers = {piece: number for number, piece in enumerate(pieces)}

    def infer(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the numbers of the pieces of each text, `ids` [rows, LENGTH]."""
        ids = np.zeros((len(inputs["text"]), LENGTH), np.int64)
        for row, text in zip(ids, inputs["text"], strict=True):
            words = re.findall(r"\w+", text.decode().lower())
            found = [number for word in words for number in self.pieces(word)][:LENGTH]
            row[: len(found)] = found
        return {"ids": ids}

    def pieces(self, word: str) -> list[int]:
        """Returns the numbers of the pieces of one word; that of `[UNK]` if it has no pieces."""
        found, start = [], 0
        while start < len(word):
            prefix = "##" if start else ""
            ends = range(len(word), start, -1)
            end = next((e for e in ends if prefix + word[start:e] in self.numbers), None)
            if end is None:
                return [self.numbers["[UNK]"]]
            found.append(self.numbers[prefix + word[start:end]])
            start = end
        return found


class TextNetwork(nn.Module):
    """Averages the embeddings of the tokens of a text, and scores two classes."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(VOCABULARY), 16, padding_idx=0)
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 2))

    def forward(self, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        """Returns `scores` [rows, 2] of `ids` [rows, LENGTH]."""
        mask = (ids > 0).float().unsqueeze(-1)
        mean = (self.embedding(ids) * mask).sum(1) / mask.sum(1).clamp(min=1)
        return {"scores": self.layers(mean)}


def image_network() -> nn.Module:
    """Returns a network for images [1, 8, 8], with random weights."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10)
    ).eval()


@dataclass(frozen=True)
class Case:
    """A published model, a request, and the answer of the model itself."""

    what: str
    name: str
    inputs: dict[str, Any]
    expected: Any
    bound: float


def publish_texts(folder: Path, store: Path) -> list[Case]:
    """Publishes a module in memory, a class with a tokenizer, and the pipeline of both."""
    vocabulary = folder / "vocab.txt"
    vocabulary.write_text("\n".join(VOCABULARY))
    tokenizer, network = Tokenizer(), TextNetwork().eval()
    tokenizer.load(types.SimpleNamespace(files={vocabulary.name: vocabulary}))
    ids = tokenizer.infer({"text": [text.encode() for text in TEXTS]})["ids"]
    scores = network(torch.from_numpy(ids))["scores"].detach().numpy()

    texts = {"text": TEXTS}
    flambeau.publish(network, {"ids": ids}, name="scorer", to=store, progress=False)
    flambeau.publish(
        Tokenizer, texts, name="tokenizer", files=[vocabulary], to=store, progress=False
    )
    steps = [
        flambeau.Step("tokens", "tokenizer@^1", {"text": "input.text"}),
        flambeau.Step("score", "scorer@^1", {"ids": "tokens.ids"}),
    ]
    pipeline = flambeau.Pipeline(steps, outputs={"scores": "score.scores"})
    flambeau.publish(pipeline, texts, name="text-scorer", to=store, progress=False)
    return [
        Case("module in memory", "scorer", {"ids": ids}, scores, ROUNDING),
        Case("Python and tokenizer", "tokenizer", texts, ids, 0),
        Case("pipeline of these two", "text-scorer", texts, scores, ROUNDING),
    ]


def import_files(folder: Path, store: Path) -> list[Case]:
    """Publishes an ONNX file and a TorchScript file by `flambeau import`."""
    images = torch.rand(8, 1, 8, 8)
    np.savez(folder / "images.npz", image=images.numpy())
    cases = []
    for what, suffix in (("ONNX file", "onnx"), ("TorchScript file", "pt")):
        network, file = image_network(), folder / f"{suffix}-file.{suffix}"
        write_file(network, images, file)
        command = [sys.executable, "-m", "flambeau", "import", str(file), "--name", file.stem]
        options = ["--examples", str(folder / "images.npz"), "--store", str(store)]
        done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{file.name}: {done.stderr.strip() or done.stdout.strip()}")
        right = network(images).detach().numpy()
        cases.append(Case(what, file.stem, {"image": images.numpy()}, right, ROUNDING))
    return cases


def write_file(network: nn.Module, images: torch.Tensor, file: Path) -> None:
    """Writes a network as an ONNX or a TorchScript file, as any tool may have written it."""
    if file.suffix == ".pt":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of TorchScript
            torch.jit.save(torch.jit.trace(network, images), file)
        return
    rows = torch.export.Dim("rows", min=1, max=1024)
    torch.onnx.export(
        network, (images,), file, dynamo=True, verbose=False, input_names=["image"],
        output_names=["scores"], dynamic_shapes=({0: rows},),
    )  # fmt: skip


def ask_rest(url: str, case: Case) -> Any:
    """Returns the first output of a model, asked by JSON over REST."""
    arrays = {name: np.array(value) for name, value in case.inputs.items()}
    inputs = [
        {
            "name": name,
            "datatype": DATATYPES.get(array.dtype.name, "BYTES"),
            "shape": list(array.shape),
            "data": array.ravel().tolist(),
        }
        for name, array in arrays.items()
    ]
    body = json.dumps({"inputs": inputs}).encode()
    with urllib.request.urlopen(f"{url}/v2/models/{case.name}/infer", body) as reply:
        (output,) = json.load(reply)["outputs"]
    return np.array(output["data"]).reshape(output["shape"])


def compare(server: flambeau.Server, cases: list[Case]) -> bool:
    """Prints a table of the differences; returns True if each is within its bound."""
    print(f"{'model':<22}  {'artifact':<12}  {'REST':>8}  {'gRPC':>8}  {'bound':>8}")
    within = True
    with server.client() as client:
        for case in cases:
            artifact = client.metadata(case.name).properties.get("artifact") or "-"
            answers = ask_rest(server.url, case), client.model(case.name)(**case.inputs)
            gaps = [float(np.abs(answer - case.expected).max()) for answer in answers]
            ok = all(gap <= case.bound for gap in gaps)  # NaN is beyond any bound
            rest, grpc = (f"{gap:8.1e}" for gap in gaps)
            verdict = "ok" if ok else "BEYOND ITS BOUND"
            print(f"{case.what:<22}  {artifact:<12}  {rest}  {grpc}  {case.bound:8.1e}  {verdict}")
            within = within and ok
    return within


def main() -> int:
    """Returns the exit code: 0 if every difference is within its bound."""
    torch.manual_seed(0)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="flambeau-demo-") as temporary:
        folder = Path(temporary)
        store = folder / "store"
        cases = publish_texts(folder, store) + import_files(folder, store)
        published = time.monotonic() - started
        ports = {"http_port": 0, "grpc_port": 0, "metrics_port": 0}
        with flambeau.serve(store=store, block=False, log_level="warning", **ports) as server:
            within = compare(server, cases)
    seconds = time.monotonic() - started
    print(f"{len(cases)} models published in {published:.0f} s, and asked: {seconds:.0f} s in all")
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
