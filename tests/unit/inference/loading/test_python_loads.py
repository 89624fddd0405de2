"""Python models at load: time limits, trust, and the choice of their process."""

import time
from pathlib import Path

import pytest

from model_store.errors import SignatureMissingError
from model_store.store import ModelStore
from services.inference.loading.artifact_needs import ArtifactNeeds
from services.inference.loading.loader import LoadError, LoadOptions, load_version
from services.inference.trust import Trust
from tests.fixtures.python_models import DOUBLING, publish

ENDLESS = """
class Model:
    def infer(self, inputs):
        while True:
            pass
"""


@pytest.mark.parametrize(
    ("process", "isolate", "is_apart"),
    [("own", False, True), ("shared", False, False), ("shared", True, True)],
)
def test_the_manifest_or_the_setting_chooses_its_process(
    tmp_path: Path, process: str, isolate: bool, is_apart: bool
) -> None:
    store = ModelStore(str(tmp_path / "store"))
    manifest = publish(store.url, "m", DOUBLING, process=process)
    (backend,) = load_version(store, manifest, LoadOptions(isolate=isolate)).backends
    assert (backend.process_bytes() > 0) == is_apart
    backend.close()


def test_a_model_that_never_answers_its_golden_rows_is_ended(tmp_path: Path) -> None:
    store = ModelStore(str(tmp_path / "store"))
    manifest = publish(store.url, "m", ENDLESS)
    needs = ArtifactNeeds(limit_bytes=0, limit_s=12.0, file="")
    started = time.monotonic()
    with pytest.raises(LoadError, match=r"golden rows takes more than 12 s \(open_time_limit_s\)"):
        load_version(store, manifest, LoadOptions(needs=needs))
    assert time.monotonic() - started < 60


def test_unsigned_code_of_a_remote_store_does_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ModelStore(str(tmp_path / "store"))
    mark = tmp_path / "ran"
    source = f"open({str(mark)!r}, 'w').close()\n{DOUBLING}"
    manifest = publish(store.url, "m", source)
    options = LoadOptions(trust=Trust(signature_needed_for="code"))
    with pytest.raises(LoadError, match="python is code and loads here only when its version is"):
        load_version(store, manifest, options)
    with pytest.raises(SignatureMissingError):
        options.trust.check(store, manifest, manifest.artifacts[0])
    assert not mark.exists()
