"""Store files with arbitrary content, beside a model that is served."""

import asyncio
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

from model_store.store import ModelStore
from tests.adversarial.attack import Attack, Target
from tests.fixtures import hostile_artifacts, onnx_models, python_models
from tests.fixtures.hostile_files import change, seal

FILES = ("1/manifest.json", "1/golden.safetensors", "1/model.0.onnx", "pointers/00000001.json")
CONTENTS = (
    b"[" * 200_000,
    b'{"a":' * 100_000,
    b"[]," * 340_000,
    b'{"' + b'":1,"'.join(b"%d" % number for number in range(20_000)) + b'":1}',
    b"9" * 900_000,
    bytes(range(256)) * 4_000,
    (2**63).to_bytes(8, "little"),
)
LOOKS = 20
"""Polls of a model until it is removed again."""
LOOK_S = 0.1

Publish = Callable[[Path, Random], None]


async def _beside(target: Target, random: Random, make: Publish) -> None:
    """Publishes a hostile model, observes it for a while, and removes it."""
    name = f"hostile-{random.randrange(2**32)}"
    await asyncio.to_thread(make, target.store / name, random)
    try:
        for _ in range(LOOKS):
            await target.post(f"/v2/models/{name}/infer", b"{}", "content-type: application/json")
            if target.over:
                break
            await asyncio.sleep(LOOK_S)
    finally:
        await asyncio.to_thread(shutil.rmtree, target.store / name)


def _published(folder: Path, *artifacts: bytes) -> None:
    """Publishes a version beside the store and moves it in as a whole: it appears at once."""
    away = folder.parent.parent / f"away-{folder.name}"
    onnx_models.publish(str(away), folder.name, *artifacts)
    (away / folder.name / "pointers").mkdir()
    (away / folder.name / FILES[-1]).write_text(
        '{"generation": 1, "aliases": {"production": 1}, "who": "", "why": "", '
        '"when": "2026-01-01T00:00:00Z"}'
    )
    (away / folder.name).rename(folder)
    shutil.rmtree(away)


async def replaced_file(target: Target, random: Random) -> None:
    """Replaces one file: endlessly nested, with too many values, meaningless; or by a pipe."""

    def make(folder: Path, random: Random) -> None:
        _published(folder, onnx_models.linear(2.0))
        file = folder / random.choice(FILES)
        file.unlink()
        if random.random() < 0.2:
            os.mkfifo(file)
        else:
            file.write_bytes(random.choice(CONTENTS))

    await _beside(target, random, make)


async def changed_file(target: Target, random: Random) -> None:
    """Changes one file at random, and adapts the digests to it."""

    def make(folder: Path, random: Random) -> None:
        _published(folder, onnx_models.linear(2.0))
        file = random.choice(FILES)
        (folder / file).write_bytes(change((folder / file).read_bytes(), random))
        if file.startswith("1/") and "manifest" not in file:
            seal(folder / "1", file.removeprefix("1/"))

    await _beside(target, random, make)


async def huge_file(target: Target, random: Random) -> None:
    """Publishes a sparse file of 10 GB."""

    def make(folder: Path, random: Random) -> None:
        _published(folder, onnx_models.linear(2.0))
        os.truncate(folder / random.choice(FILES), 10**10)

    await _beside(target, random, make)


async def hungry_artifact(target: Target, random: Random) -> None:
    """Publishes a 200-byte artifact that takes 12 GB to open, or for each row; or never opens."""

    def make(folder: Path, random: Random) -> None:
        artifact = random.choice(
            [
                hostile_artifacts.memory_bomb(),
                hostile_artifacts.batch_bomb(2**31),
                hostile_artifacts.endless(),
            ]
        )
        _published_unproven(folder, artifact)

    await _beside(target, random, make)


def _published_unproven(folder: Path, artifact: bytes) -> None:
    """Publishes an artifact that was never run: its golden rows are those of another."""
    _published(folder, onnx_models.linear(2.0))
    (folder / "1/model.0.onnx").write_bytes(artifact)
    seal(folder / "1", "model.0.onnx")


PYTHON_FAULTS = {
    "ends its process": "os._exit(1)",
    "crashes": "ctypes.string_at(0)",
    "leaks": "self.kept = [bytes(2**26) for _ in range(200)]",
    "floods": "print('x' * 2**20)",
    "starts processes": "[subprocess.Popen(['sleep', '60']) for _ in range(5)]",
    "forks": "os.fork()",
    "answers too much": "return np.broadcast_to(np.float32(0), (1, 2**40))",
    "recurses": "return self.infer(inputs)",
    "never answers": "time.sleep(3600)",
}
"""Statements of a Python model; each runs for the golden rows, in a process of the model's own."""


async def python_fault(target: Target, random: Random) -> None:
    """Publishes a Python model that does one of `PYTHON_FAULTS` at its golden rows."""

    def make(folder: Path, random: Random) -> None:
        away = folder.parent.parent / f"away-{folder.name}"
        fault = PYTHON_FAULTS[random.choice(list(PYTHON_FAULTS))]
        source = (
            "import ctypes, os, subprocess, time\nimport numpy as np\nclass Model:\n"
            f"    def infer(self, inputs):\n        {fault}\n        return 2 * inputs['x']\n"
        )
        python_models.publish(str(away), folder.name, source)
        ModelStore(str(away)).promote(folder.name, 1, why="an attack's")
        (away / folder.name).rename(folder)
        shutil.rmtree(away)

    await _beside(target, random, make)


async def zip_bomb(target: Target, random: Random) -> None:
    """Publishes a `.pt` of 1.5 MB that inflates to 1.5 GiB."""

    def make(folder: Path, random: Random) -> None:
        _published(folder, onnx_models.linear(2.0))
        (folder / "1/model.0.onnx").rename(folder / "1/model.pt")
        manifest = json.loads((folder / "1/manifest.json").read_text())
        (artifact,) = manifest["artifacts"]
        artifact["kind"], artifact["file"]["file"] = "torchscript", "model.pt"
        (folder / "1/manifest.json").write_text(json.dumps(manifest))
        (folder / "1/model.pt").write_bytes(hostile_artifacts.zip_bomb())
        seal(folder / "1", "model.pt")

    await _beside(target, random, make)


ATTACKS = (
    Attack("a store: a file replaced", replaced_file),
    Attack("a store: a file changed", changed_file),
    Attack("a store: a file of 10 GB", huge_file),
    Attack("a store: an artifact that takes all", hungry_artifact),
    Attack("a store: an archive that inflates", zip_bomb),
    Attack("a store: a Python model with a fault", python_fault),
)
