"""Publishing from programs as users write them: scripts, notebooks, debuggers, other projects."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import flambeau
from flambeau.publishing.errors import RefusedError

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys
import numpy as np
import torch
from torch import nn
import flambeau

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)
    def forward(self, features):
        return {"logits": self.layer(features)}

torch.manual_seed(0)
net, rows = Net(), torch.randn(40, 4)
version = flambeau.publish(
    net, {"features": rows}, name="mine", to=sys.argv[1], artifacts=["onnx"], progress=False
)
with flambeau.load("mine", store=sys.argv[1], artifact="onnx") as mine:
    found = mine(features=rows.numpy())
gap = float(np.abs(found - net(rows)["logits"].detach().numpy()).max())
OURS = ("training", "services", "protos", "model_store")
seen = sorted({name.partition(".")[0] for name in sys.modules} & set(OURS))
import json
print(json.dumps({"version": version.version, "gap": gap, "seen": seen}))
"""

STARTED = """
import asyncio, json, multiprocessing, sys
import torch
import flambeau

def publish(store):
    net = torch.nn.Linear(4, 3).eval()
    found = flambeau.publish(
        net, torch.randn(4, 4), name="mine", to=store, artifacts=["torchscript"], progress=False
    )
    print(json.dumps({"version": found.version}), flush=True)

async def in_a_task(store):
    publish(store)

def run_a_task(store):
    asyncio.run(in_a_task(store))

def in_a_child(how):
    context = multiprocessing.get_context(how)
    child = context.Process(target=run_a_task, args=(sys.argv[1],))
    child.start()
    child.join()
"""


def run(arguments: list[str], folder: Path, **environment: str) -> dict[str, object]:
    """Runs a program in a folder; returns the JSON of its last line."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    found: dict[str, object] = json.loads(lines[-1])
    return found


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose packages have the names of ours, and fail if anybody else imports them."""
    folder = tmp_path_factory.mktemp("project")
    for name in ("training", "services", "protos", "model_store", "onnxruntime"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(f"raise RuntimeError('{name} of the project')")
    (folder / "program.py").write_text(PROGRAM)
    return folder


@pytest.mark.long
def test_a_program_under_a_debugger_publishes_in_a_project_with_packages_of_our_names(
    project: Path, tmp_path: Path
) -> None:
    found = run(
        ["-m", "pdb", "-c", "break Net.forward, False", "-c", "continue", "-c", "quit",
         "program.py", str(tmp_path)],
        project,
    )  # fmt: skip

    assert found["version"] == 1
    assert found["seen"] == []
    assert float(str(found["gap"])) < 1e-5


@pytest.mark.long
def test_a_cell_of_a_notebook_publishes_beside_packages_on_the_python_path(
    project: Path, tmp_path: Path
) -> None:
    """A cell has no file, and its names live in `__main__`."""
    (tmp_path / "cell.py").write_text(PROGRAM)
    text = f"import sys; sys.argv = ['', {str(tmp_path / 'store')!r}]; " + textwrap.dedent(
        f"exec(compile(open({str(tmp_path / 'cell.py')!r}).read(), '<cell 1>', 'exec'))"
    )

    found = run(["-c", text], tmp_path, PYTHONPATH=str(project))

    assert (found["version"], found["seen"]) == (1, [])


@pytest.mark.long
@pytest.mark.parametrize(
    ("command", "call"),
    [
        (["-i", "training.py"], "in_a_child('fork')"),
        (["-m", "package.module"], "in_a_child('spawn')"),
    ],
)
def test_programs_publish_however_they_are_started(
    command: list[str], call: str, tmp_path: Path
) -> None:
    """From an interactive session, a package, tasks of children, beside names of modules."""
    file = "package/module.py" if "-m" in command else command[-1]
    (tmp_path / "package").mkdir()
    (tmp_path / "yaml.py").write_text("raise RuntimeError('yaml of the project')")
    (tmp_path / file).write_text(STARTED + f"\nif __name__ == '__main__':\n    {call}\n")
    assert run([*command, str(tmp_path / "store")], tmp_path) == {"version": 1}


def test_nothing_is_published_where_a_gate_is_missed(tmp_path: Path) -> None:
    store = tmp_path / "store"
    net = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 3)).eval()

    with pytest.raises(RefusedError, match="onnx-int8"):
        flambeau.publish(
            net,
            torch.randn(40, 4),
            name="mine",
            to=store,
            artifacts=["onnx-int8"],
            gates={"absolute": 1e-9},
            progress=False,
        )

    assert not list(store.glob("mine/*/manifest.json"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"gates": {"logit": {"top1": 0.9}}}, "logit"),
        ({"metadata": {"team": "x" * 5000}}, "metadata"),
    ],
)
def test_wrong_options_are_told_in_words(
    options: dict[str, object], words: str, tmp_path: Path
) -> None:
    with pytest.raises(RefusedError) as refused:
        flambeau.publish(
            nn.Linear(4, 3).eval(),
            torch.randn(4, 4),
            to=tmp_path,
            progress=False,
            **{"name": "mine", **options},  # type: ignore[arg-type]
        )

    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_targets_give_a_metric_and_metadata_is_kept(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net, rows = nn.Linear(4, 3).eval(), torch.randn(48, 4)
    targets = net(rows).argmax(1).numpy()

    version = flambeau.publish(
        net,
        rows,
        name="mine",
        to=tmp_path,
        targets=targets,
        outputs=["logits"],
        labels={"logits": ["a", "b", "c"]},
        metadata={"team": "vision"},
        artifacts=["onnx"],
        progress=False,
    )

    manifest = json.loads((tmp_path / "mine" / str(version.version) / "manifest.json").read_text())
    assert manifest["lineage"]["metrics"] == {"test/accuracy": 1.0}
    assert manifest["metadata"] == {"team": "vision"}
    assert manifest["signature"]["labels"] == {"logits": ["a", "b", "c"]}


@pytest.mark.long
def test_a_renamed_input_is_told_as_what_breaks_callers(tmp_path: Path) -> None:
    net, rows = nn.Linear(4, 3).eval(), torch.randn(8, 4)
    said: list[str] = []
    for name in ("image", "picture"):
        version = flambeau.publish(
            net, {name: rows}, name="mine", to=tmp_path, artifacts=["onnx"], progress=said.append
        )

    words = (
        "version 2 (2.0.0) breaks callers of 1 (1.0.0), so it is a major version: "
        "input 'image' is removed, input 'picture' is new"
    )
    assert version.notes[-1] == words
    assert said.count(f"note: {words}") == 1


@pytest.mark.long
def test_sizes_that_vary_are_served(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    examples = [{"image": torch.randn(4, 1, size, size)} for size in (8, 16)]

    flambeau.publish(net, examples, name="mine", to=tmp_path, artifacts=["onnx"], progress=False)

    image = np.random.default_rng(0).normal(size=(2, 1, 11, 9)).astype(np.float32)
    with flambeau.load("mine", store=tmp_path) as mine:
        found = mine(image=image)
    right = net(torch.from_numpy(image)).detach().numpy()
    np.testing.assert_allclose(found, right, atol=1e-5)
