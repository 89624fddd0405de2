"""A JPEG classifier end to end: Pillow decodes in a Python model, in front of a network.

Runs in the environment that `make up` makes, with `pip install pillow`.
"""

import io
from typing import Any

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch import nn

import flambeau


class Decoder:
    """Decodes JPEG files to images [1, 8, 8] of numbers from 0 to 1."""

    def infer_one(self, jpeg: bytes) -> dict[str, Any]:
        """Returns the image of one file; a file that is no image is refused."""
        try:
            image = Image.open(io.BytesIO(jpeg), formats=["JPEG"]).convert("L").resize((8, 8))
        except OSError as error:
            raise ValueError(f"the JPEG file cannot be read: {error}") from error
        return {"image": np.asarray(image, np.float32)[None] / 255}


def jpeg_of(image: Any) -> bytes:
    """Returns an image [8, 8] of numbers from 0 to 16 as a JPEG file, four times as large."""
    large = Image.fromarray((image * 255 / 16).astype(np.uint8)).resize((32, 32))
    large.save(file := io.BytesIO(), "JPEG", quality=95)
    return file.getvalue()


def trained(images: Any, labels: Any) -> nn.Module:
    """Returns a network of images [1, 8, 8], trained for some seconds."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(1024, 10)]
    network = nn.Sequential(*layers)
    optimizer = torch.optim.Adam(network.parameters(), 3e-3)
    for _ in range(300):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(images), labels).backward()
        optimizer.step()
    return network.eval()


def main() -> None:
    """Publishes decoder, network and their pipeline, and asks for the labels of JPEG files."""
    digits = load_digits()
    files, decoder = [jpeg_of(image) for image in digits.images], Decoder()
    images = torch.from_numpy(np.stack([decoder.infer_one(file)["image"] for file in files]))
    labels = torch.from_numpy(digits.target)
    network = trained(images[:1400], labels[:1400])

    names = {"scores": [f"digit {number}" for number in range(10)]}
    flambeau.publish(Decoder, {"jpeg": files[:32]}, name="jpeg-decoder")
    flambeau.publish(
        network, {"image": images[:64]}, name="jpeg-digits", outputs=["scores"], labels=names
    )
    pipeline = flambeau.Pipeline(
        steps=[
            flambeau.Step("decode", "jpeg-decoder@^1", {"jpeg": "input.jpeg"}),
            flambeau.Step("score", "jpeg-digits@^1", {"image": "decode.image"}),
        ],
        outputs={"scores": "score.scores"},
    )
    flambeau.publish(pipeline, {"jpeg": files[:32]}, name="jpeg-classifier")

    with flambeau.load("jpeg-classifier") as classifier:
        scores = classifier(jpeg=files[1400:])
    right = network(images[1400:]).detach().numpy()
    gap, accuracy = np.abs(scores - right).max(), (scores.argmax(1) == labels[1400:].numpy()).mean()
    print(f"accuracy {accuracy:.1%}; largest difference from the network itself {gap:.1e}")
    assert gap < 1e-3


if __name__ == "__main__":
    main()
