"""silero-vad as a model with state: the server keeps the state of each stream, and batches streams.

Needs `pip install silero-vad==6.2.3 --no-deps`, whose ONNX file it publishes.
"""

import subprocess
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

import flambeau

NETWORK = Path(str(resources.files("silero_vad"))) / "data" / "silero_vad.onnx"
RATE, CHUNK, BEFORE = 16_000, 512, 64
"""Samples a second; samples of a chunk; samples before it that the network expects."""
SEQUENCE = "{states: {state: stateN}, max_idle_s: 10}"
"""`state` before a chunk is `stateN` after the one before, and zeros before the first."""


def streams(count: int, chunks: int = 32) -> Any:
    """Returns made-up audio as chunks [count, chunks, samples]: tones that swell, and noise."""
    random = np.random.default_rng(0)
    time = np.arange(BEFORE + chunks * CHUNK) / RATE
    pitch = random.uniform(90, 300, (count, 1))
    voices = sum(np.sin(2 * np.pi * pitch * n * time) / n for n in range(1, 12))
    loudness = np.abs(np.sin(2 * np.pi * 3 * time)) * random.uniform(0, 0.3, (count, 1))
    audio = voices * loudness + 0.01 * random.normal(size=(count, len(time)))
    starts = range(0, chunks * CHUNK, CHUNK)
    return np.stack([audio[:, at : at + BEFORE + CHUNK] for at in starts], 1).astype(np.float32)


def publish(stream: Any) -> None:
    """Publishes the ONNX file; the rows of the examples are the chunks of one stream, in order."""
    examples = {
        "input": stream,
        "state": np.zeros((2, len(stream), 128), np.float32),
        "sr": np.array(RATE),
    }
    np.savez("vad.npz", **examples)
    command = [sys.executable, "-m", "flambeau", "import", str(NETWORK), "--name", "vad"]
    options = ["--examples", "vad.npz", "--sequence", SEQUENCE, "--artifacts", "onnx"]
    subprocess.run([*command, *options], check=True)


def heard(client: flambeau.Client, audio: Any) -> Any:
    """Returns the probability of speech [streams, chunks], all streams in turn."""
    found = np.empty(audio.shape[:2], np.float32)
    last = audio.shape[1] - 1
    for place in range(last + 1):
        for stream, chunks in enumerate(audio):
            answer = client.infer(
                "vad",
                {"input": chunks[place : place + 1], "sr": np.array(RATE)},
                sequence_id=f"microphone-{stream}",
                sequence_start=place == 0,
                sequence_end=place == last,
            )
            found[stream, place] = answer["output"][0, 0]
    return found


def computed(audio: Any) -> Any:
    """Returns the same by ONNX Runtime, which is given the state."""
    session = onnxruntime.InferenceSession(NETWORK)
    state, found = np.zeros((2, len(audio), 128), np.float32), []
    for place in range(audio.shape[1]):
        given = {"input": audio[:, place], "state": state, "sr": np.array(RATE)}
        output, state = session.run(["output", "stateN"], given)
        found.append(output)
    return np.concatenate(found, axis=1)


def main() -> None:
    """Publishes the model, serves it, and compares its answers with those of the file."""
    audio = streams(4)
    publish(audio[0])
    with (
        flambeau.serve("vad", block=False, http_port=0, grpc_port=0, metrics_port=0) as server,
        server.client(retries=0) as client,
    ):
        gap = np.abs(heard(client, audio) - computed(audio)).max()
    print(f"vad: largest difference from silero-vad {gap:.1e}")
    assert gap < 1e-4


if __name__ == "__main__":
    main()
