"""Classes of a caller's program as source that runs elsewhere."""

import math as maths
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from flambeau.publishing.class_source import class_source
from flambeau.publishing.errors import CaptureError

OFFSET = {"a": 3}
TABLE = np.array([[0.1, np.nan], [-np.inf, 3]], np.float32)
KNOWN = {"scale": np.float32(0.1), "rows": (TABLE[1], float("inf")), "one": (1,), "no": set()}
LOCK = threading.Lock()


def shifted(value: float) -> int:
    return maths.floor(value) + OFFSET["a"]


class Parent:
    """Is inherited."""

    def close(self) -> None:
        """Does nothing."""


class Adding(Parent):
    """Uses a module, a function, a constant and a base class."""

    def infer(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Returns shifted numbers."""
        counts = Counter(inputs["x"].tolist())
        return {"y": np.array([shifted(value) for value in counts])}


Images = dict[str, NDArray[np.float32]]


class Hinted:
    """Has hints that cannot be written as source, and one that is a class of the program."""

    def infer(self, inputs: Images, parent: Parent | None = None) -> Images:
        """Returns the inputs."""
        scores: NDArray[np.float32] = inputs["x"]
        return {"y": scores}


class UsingArrays:
    """Uses constants of NumPy."""

    def infer(self, inputs: dict[str, Any]) -> Any:
        """Returns the constants."""
        return TABLE, KNOWN


item = threading.Lock()
key = row = part = failure = limit = item
"""Names that the class below has as local ones of the same spelling."""
CALLS = 0
SMALL, BASE, TABLES = 2, 3, {"a": [1, 2]}


class LocalNames(Parent):
    """Uses global names beside local ones, which the module has with other values."""

    row: int = 7
    rows = (row, 1)

    def infer(self, inputs: dict[str, Any], part: int = SMALL) -> Any:
        """Returns numbers that each kind of local name contributes to."""
        global CALLS
        CALLS += 1
        parts = [item * BASE for item in inputs["x"]]
        found = {key: (lambda limit: limit + part)(value[0]) for key, value in TABLES.items()}

        def largest() -> int:
            return int(max(item for item in parts))

        try:
            return [largest(), found["a"], CALLS, *self.rows][part + 9]
        except IndexError as failure:
            return [largest(), found["a"], CALLS, *self.rows, type(failure).__name__]


class UsingALock:
    """Uses a value that has no source."""

    def infer(self, inputs: dict[str, Any]) -> Any:
        """Returns the lock."""
        return LOCK


def test_the_source_runs_alone() -> None:
    source = class_source(Adding)

    scope: dict[str, Any] = {}
    exec(compile(source, "model.py", "exec"), scope)
    found = scope["Adding"]().infer({"x": np.array([1.5])})

    assert found["y"].tolist() == [4]
    assert scope["Adding"].__mro__[1].__name__ == "Parent"


def test_hints_need_no_source() -> None:
    names: dict[str, Any] = {}
    exec(class_source(Hinted), names)
    assert names["Hinted"]().infer({"x": 1}) == {"y": 1}
    assert "Parent" in names


def test_functions_that_are_not_of_the_top_level_are_refused() -> None:
    def inner(inputs: Any) -> Any:
        return {"y": offset + inputs["x"]}

    offset = 1
    with pytest.raises(CaptureError, match="'inner' is defined inside a function"):
        class_source(inner)  # type: ignore[arg-type]
    with pytest.raises(CaptureError, match="a lambda cannot be written"):
        class_source(lambda inputs: inputs)  # type: ignore[arg-type]


def test_a_value_without_source_is_named() -> None:
    with pytest.raises(CaptureError, match="'UsingALock' uses 'LOCK', a lock"):
        class_source(UsingALock)


def test_local_names_are_not_those_of_the_module() -> None:
    scope: dict[str, Any] = {}
    exec(class_source(LocalNames), scope)
    assert scope["LocalNames"]().infer({"x": [4, 5]}) == [15, 3, 1, 7, 1, "IndexError"]
    assert not {"item", "key", "row", "part", "failure", "limit"} & scope.keys()


@pytest.mark.parametrize(
    "body",
    [
        "return x",
        "return [x for _ in y]",
        "return [y for y in x]",
        "return (lambda y=x: y)()",
        "def inner():\n   return x\n  return inner()",
        "x = 1\n  def inner():\n   global x\n   return x\n  return inner()",
    ],
)
def test_a_global_name_counts_wherever_it_is_read(tmp_path: Path, body: str) -> None:
    script = tmp_path / "program.py"
    script.write_text(
        "import threading\n"
        "x = threading.Lock()\n"
        f"class Model:\n def infer(self, y):\n  {body}\n"
        "from flambeau.publishing.class_source import class_source\n"
        "print(class_source(Model))\n"
    )
    ended = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert "CaptureError: 'Model' uses 'x', a lock" in ended.stderr


def test_constants_of_numpy_are_written_exactly() -> None:
    scope: dict[str, Any] = {}
    exec(class_source(UsingArrays), scope)
    table, known = scope["UsingArrays"]().infer({})
    assert (table.dtype, table.shape) == (TABLE.dtype, TABLE.shape)
    assert table.tobytes() == TABLE.tobytes()
    assert table.flags.writeable
    assert type(known["scale"]) is np.float32
    assert known["scale"] == np.float32(0.1)
    assert known["rows"][0].tolist() == TABLE[1].tolist()
    assert (known["rows"][1], known["one"], known["no"]) == (float("inf"), (1,), set())


def test_a_class_of_a_script_needs_no_guard(tmp_path: Path) -> None:
    """The script is not executed again: its last line would fail."""
    script = tmp_path / "program.py"
    script.write_text(
        "import json\n"
        "FACTOR = 2\n"
        "class Doubling:\n"
        "    def infer(self, inputs):\n"
        "        return {'y': json.loads('1') * FACTOR * inputs['x']}\n"
        "from flambeau.publishing.class_source import class_source\n"
        "print(class_source(Doubling))\n"
    )

    found = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=True
    )

    assert found.stdout.startswith("from __future__ import annotations\nimport json\n")
    assert "FACTOR = 2" in found.stdout
    assert "class_source" not in found.stdout
