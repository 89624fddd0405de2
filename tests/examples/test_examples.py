"""The scripts of examples/: each publishes a model, and answers as the model itself."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = ("found_digits", "jpeg_classifier", "scikit_classifier")
SLOW = ("file_types", "sentence_embeddings", "voice_activity", "voice_sequences")
"""Scripts with models of other packages: `make test-examples`."""
PAGES = ROOT / "docs/tutorials/examples"
SLOW_SCRIPTS = [pytest.param(name, marks=pytest.mark.slow) for name in SLOW]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", [*SCRIPTS, *SLOW_SCRIPTS])
def test_it_answers_as_the_model_itself(name: str, tmp_path: Path) -> None:
    script = ROOT / "examples" / f"{name}.py"
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"difference .*\d\.\de[-+]\d\d", done.stdout), done.stdout


@pytest.mark.parametrize("name", [*SCRIPTS, *SLOW])
def test_its_page_shows_its_code(name: str) -> None:
    text = (ROOT / "examples" / f"{name}.py").read_text()
    page = (PAGES / f"{name.replace('_', '-')}.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert blocks
    for block in blocks:
        assert block in text, f"the page of {name} shows other code:\n{block}"
    assert f"python examples/{name}.py" in page


def test_each_script_has_a_test_and_a_line_in_the_index() -> None:
    scripts = {path.stem for path in (ROOT / "examples").glob("*.py")}
    assert scripts == {"demo", *SCRIPTS, *SLOW}
    index = (ROOT / "examples/README.md").read_text()
    for name in scripts:
        assert f"`{name}.py`" in index, name
