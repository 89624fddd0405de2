"""The store of the training service: a folder in any spelling, or a bucket."""

from pathlib import Path

import pytest

from services.settings import checked
from services.trainer.config import TrainerConfig


@pytest.mark.parametrize(
    ("store", "folder"),
    [
        ("~/models", "home/models"),
        ("file://~/models", "home/models"),
        ("models", "work/models"),
        ("s3://bucket/models", None),
    ],
)
def test_the_folder_of_the_store_is_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str, folder: str | None
) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "work")
    config = checked(TrainerConfig, {"store": store})
    wanted = tmp_path / folder if folder else None
    assert config.store_folder == wanted
    assert config.store_url == (str(wanted) if wanted else store)
