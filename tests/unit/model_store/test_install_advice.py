"""Installation advice in messages: in a checkout, after a wheel, after an index."""

import sys
from pathlib import Path

import pytest

from model_store.host import install_advice
from model_store.host.install_advice import install_command

ROOT = Path(__file__).parents[3]


def test_in_a_checkout_it_is_the_checkout_that_is_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    monkeypatch.chdir(ROOT)
    assert install_command("data") == "pip install -e '.[data]'"
    monkeypatch.chdir(tmp_path)
    assert install_command("data") == f"pip install -e '{ROOT}[data]'"


def test_pip_is_that_of_the_environment_whatever_the_shell_finds(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "env/bin/python"))
    monkeypatch.setenv("PATH", "/usr/bin")
    monkeypatch.chdir(tmp_path)
    assert install_command("data").startswith("env/bin/python -m pip install ")
    (tmp_path / "env/bin").mkdir(parents=True)
    (tmp_path / "env/bin/pip").touch(mode=0o755)
    assert install_command("data").startswith("env/bin/pip install ")
    monkeypatch.setenv("PATH", str(tmp_path / "env/bin"))
    assert install_command("data").startswith("pip install ")


def test_where_there_is_no_checkout_it_is_the_wheel_or_the_index(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Installed:
        """A distribution that pip installed from a file, or from an index."""

        def __init__(self, url: str | None) -> None:
            self._url = url

        def read_text(self, name: str) -> str | None:
            assert name == "direct_url.json"
            return None if self._url is None else f'{{"url": "{self._url}", "archive_info": {{}}}}'

    wheel = tmp_path / "flambeau-1-py3-none-any.whl"
    wheel.touch()
    monkeypatch.setattr(install_advice, "CHECKOUT", tmp_path)
    for url, wanted in (
        (None, "'flambeau[data]'"),
        (wheel.as_uri(), f"'flambeau[data] @ {wheel.as_uri()}'"),
        ("file:///gone/flambeau-1-py3-none-any.whl", "'flambeau[data]'"),
    ):
        monkeypatch.setattr(install_advice, "distributions", lambda url=url, **_: [Installed(url)])
        assert install_command("data").endswith(f" install {wanted}")
