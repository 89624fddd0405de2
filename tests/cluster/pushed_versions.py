"""Versions that a client outside of the cluster pushes through Envoy to the registry.

They are promoted, or rolled out, by the command line, as a person would.
"""

import subprocess
from pathlib import Path

from model_store.store import ModelStore
from tests.cluster.callers import MODEL
from tests.fixtures import onnx_models
from tests.fixtures.credentials import KEY, keys_text
from tests.fixtures.servers import COMMAND, ROOT

TIMEOUT_S = 120.0
GRANTS = ("read", "push", "promote")


class PushedVersions:
    """The client.

    Args:
        front: `host:port` of Envoy.
        folder: folder for its own store, and its key.
        store: store of the cluster, from which it takes what is published until now.
    """

    def __init__(self, front: str, folder: Path, store: ModelStore) -> None:
        self._url = f"http://{front}"
        self._token_file = folder / "registry-token"
        self._token_file.write_text(KEY)
        self._own, self._store = ModelStore(str(folder / "own-store")), store

    @staticmethod
    def keys() -> str:
        """Returns the file of keys for the registry."""
        return keys_text(*GRANTS, name="ci")

    def push(self) -> int:
        """Publishes the next version in its own store, and pushes it; returns its number."""
        newest = max(self._store.versions(MODEL))
        own = self._own
        known = list(own.versions(MODEL)) if MODEL in own.models() else []
        for number in range(len(known) + 1, newest + 2):
            onnx_models.publish(own.url, MODEL, onnx_models.linear(number))
        version = newest + 1
        self._run("push", f"{MODEL}/{version}", "--to", self._url, "--store", own.url)
        return version

    def promote(self, version: int) -> None:
        """Points production at a version."""
        self._run("models", "promote", MODEL, str(version), "--at", self._url, "--why", "pushed")

    def start_rollout(self, version: int) -> None:
        """Starts a rollout that stays at half of the requests."""
        steps = ["--steps", "50%", "--why", "pushed"]
        self._run("rollout", "start", MODEL, str(version), *steps, "--server", self._url)

    def promote_rollout(self) -> None:
        """Ends the rollout with its promotion."""
        self._run("rollout", "promote", MODEL, "--why", "half went well", "--server", self._url)

    def _run(self, *arguments: str) -> None:
        command = [COMMAND, *arguments, "--token-file", str(self._token_file)]
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
        assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"
