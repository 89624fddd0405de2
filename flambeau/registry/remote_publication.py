"""`python -m flambeau.registry.remote_publication JSON`: the registry's part of `flambeau.publish`.

In: a task. Out: one JSON object a line: `{"step": text}`, then `{"done": {...}}` or
`{"error": text}`, with `"is_unknown": true` if the version may be published.

Its acts are those of `publication`. They run in a process of our own, since the caller's project
may have packages of our names.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from flambeau.channel import Tls
from flambeau.protocol.strict import StrictModel
from flambeau.registry.connection import RegistryConnection
from flambeau.registry.errors import RegistryError, RegistryUnknownError
from flambeau.registry.publication import prepare, push
from model_store.errors import StoreError
from model_store.store import ModelStore

WHY = "published from Python"


class Task(StrictModel):
    """The work of the process."""

    act: Literal["prepare", "push"]
    url: str
    token_file: str = ""
    ca_file: str = ""
    store: str
    model: str
    version: int = 0
    alias: str | None = None


def main(text: str) -> int:
    """Does a task. Returns the exit code."""
    task = Task.model_validate_json(text)
    try:
        registry = _connection(task)
        try:
            store = ModelStore(task.store)
            done = _do(registry, store, task)
        finally:
            registry.close()
    except (RegistryError, StoreError, OSError, ValueError) as error:
        hint = ""
        if isinstance(error, RegistryError) and error.status == 401:
            hint = "; give the file of a key with token_file"
        is_unknown = isinstance(error, RegistryUnknownError)
        _tell({"error": f"{error}{hint}", "is_unknown": is_unknown})
        return 1
    _tell({"done": done})
    return 0


def _connection(task: Task) -> RegistryConnection:
    token = Path(task.token_file).read_text("utf-8").strip() if task.token_file else ""
    tls = Tls(ca_file=task.ca_file) if task.ca_file else None
    return RegistryConnection(task.url, token, tls)


def _do(registry: RegistryConnection, store: ModelStore, task: Task) -> dict[str, Any]:
    if task.act == "prepare":
        return {"number": prepare(registry, store, task.model)}
    done = push(
        registry,
        store,
        task.model,
        task.version,
        task.alias,
        WHY,
        lambda step: _tell({"step": step}),
    )
    return asdict(done)


def _tell(event: dict[str, Any]) -> None:
    print(json.dumps(event), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
