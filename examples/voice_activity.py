"""silero-vad, which finds speech in audio: its TorchScript for clips, its ONNX for streams.

Needs `pip install silero-vad==6.2.3 --no-deps`. Both networks are read from that package.
"""

import subprocess
import sys
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch

import flambeau

DATA = Path(str(resources.files("silero_vad"))) / "data"
RATE, CHUNK, BEFORE = 16_000, 512, 64
"""Samples a second; samples of a chunk; samples before it that the ONNX file expects."""


class Clips:
    """Gives the probability of speech for each chunk of clips of audio.

    The network keeps its state between calls, so each batch begins with a new one.
    """

    def load(self, context: flambeau.Context) -> None:
        """Opens the network."""
        self.network = torch.jit.load(context.files["silero_vad.jit"])

    def infer(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Returns `speech` [rows, chunks] of `audio` [rows, samples]."""
        audio = torch.from_numpy(inputs["audio"].copy())
        chunks = audio[:, : audio.shape[1] // CHUNK * CHUNK].split(CHUNK, dim=1)
        self.network.reset_states()
        with torch.inference_mode():
            answers = [self.network(chunk, RATE) for chunk in chunks]
        return {"speech": torch.cat(answers, dim=1).numpy()}


def clips(rows: int, seconds: float = 0.512) -> Any:
    """Returns made-up audio [rows, samples]: tones that swell, and noise."""
    random = np.random.default_rng(0)
    time = np.arange(int(seconds * RATE)) / RATE
    pitch = random.uniform(90, 300, (rows, 1))
    voices = sum(np.sin(2 * np.pi * pitch * n * time) / n for n in range(1, 12))
    loudness = np.abs(np.sin(2 * np.pi * 3 * time)) * random.uniform(0, 0.3, (rows, 1))
    return (voices * loudness + 0.01 * random.normal(size=(rows, len(time)))).astype(np.float32)


def publish_stream(audio: Any) -> None:
    """Publishes the ONNX file, whose state is an input and an output."""
    random = np.random.default_rng(1)
    examples = {
        "input": audio[:, : BEFORE + CHUNK],
        "state": random.normal(0, 0.1, (2, len(audio), 128)).astype(np.float32),
        "sr": np.array(RATE),
    }
    np.savez("stream.npz", **examples)
    command = [sys.executable, "-m", "flambeau", "import", str(DATA / "silero_vad.onnx")]
    subprocess.run([*command, "--name", "stream", "--examples", "stream.npz"], check=True)


def main() -> None:
    """Publishes both, and compares their answers with the TorchScript's of the package."""
    audio = clips(8)
    flambeau.publish(Clips, {"audio": audio}, name="clips", files=[DATA / "silero_vad.jit"])
    right = torch.jit.load(DATA / "silero_vad.jit").audio_forward(torch.from_numpy(audio), RATE)
    with flambeau.load("clips") as model:
        gap = np.abs(model(audio=audio) - right.numpy()).max()
    print(f"clips: largest difference from silero-vad {gap:.1e}")
    assert gap < 1e-5

    publish_stream(audio)
    state, padded = np.zeros((2, 8, 128), np.float32), np.pad(audio, ((0, 0), (BEFORE, 0)))
    found = []
    with flambeau.load("stream") as model:
        for at in range(0, audio.shape[1], CHUNK):
            chunk = padded[:, at : at + BEFORE + CHUNK]
            answer = model(input=chunk, state=state, sr=np.array(RATE))
            state = answer["stateN"]
            found.append(answer["output"])
    gap = np.abs(np.concatenate(found, axis=1) - right.numpy()).max()
    print(f"stream: largest difference from silero-vad {gap:.1e}")
    assert gap < 1e-4


if __name__ == "__main__":
    main()
