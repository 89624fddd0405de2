"""Which interpreter `make` builds environments with."""

import subprocess
import sys
from pathlib import Path

from deploy import interpreter

ROOT = Path(__file__).parents[2]


def test_an_optimised_build_of_the_same_version_is_preferred() -> None:
    done = subprocess.run(
        [sys.executable, "deploy/interpreter.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    found = done.stdout.strip()
    answer = "import sys; print(*sys.version_info[:2])"
    version = subprocess.run([found, "-c", answer], capture_output=True, text=True, check=True)
    assert version.stdout.split() == [str(part) for part in sys.version_info[:2]]
    if interpreter.is_optimised(sys.executable):
        assert (found, done.stderr) == (sys.executable, "")
    else:
        assert f"note: {sys.executable} is not an optimised build" in done.stderr
        assert found == sys.executable or Path(found).parent == interpreter.SYSTEM


def test_an_interpreter_without_venv_is_not_taken(tmp_path: Path) -> None:
    stripped = tmp_path / "python"
    stripped.write_text(f'#!/bin/sh\nexec {sys.executable} -S -c "import no_such_module"\n')
    stripped.chmod(0o755)
    assert not interpreter.is_complete(stripped)
    assert not interpreter.is_complete(tmp_path / "missing")
    assert interpreter.is_complete(Path(sys.base_prefix) / "bin" / "python3")
