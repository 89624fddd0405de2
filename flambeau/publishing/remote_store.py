"""A server's registry as the place that `publish` publishes to.

In: its URL. Out: the version there. The model is proven here, in a temporary store, and pushed.
"""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from flambeau.local.own_process import OwnProcess, OwnProcessError
from flambeau.publishing.errors import NotPromotedError, RefusedError
from flambeau.publishing.published import PublishedVersion

_MODULE = "flambeau.registry.remote_publication"


def is_remote(to: str | os.PathLike[str]) -> bool:
    """Returns True for the URL of a server, and False for that of a store."""
    return os.fspath(to).lower().startswith(("http://", "https://"))


class RemoteStore:
    """The registry of a server.

    Args:
        url: URL of the server.
        token_file: file of a key or token; None for none.
        ca_file: file of the authorities that signed the server's certificate; None for those of
            the system.
        model: name of the model.
        store: an empty folder for the temporary store.
    """

    def __init__(
        self,
        url: str,
        token_file: str | os.PathLike[str] | None,
        ca_file: str | os.PathLike[str] | None,
        model: str,
        store: str,
    ) -> None:
        self._url = url.rstrip("/")
        files = {"token_file": token_file, "ca_file": ca_file}
        self._task: dict[str, Any] = {
            "url": url,
            "model": model,
            "store": store,
            **{k: str(Path(path).expanduser().absolute()) for k, path in files.items() if path},
        }

    def prepare(self) -> None:
        """Checks that the caller may push, and gives the store what the next version follows.

        Raises:
            RefusedError: the server does not answer, or the caller may not push.
        """
        self._do("nothing was published", lambda _: None, act="prepare")

    def push(
        self, version: PublishedVersion, alias: str | None, say: Callable[[str], None]
    ) -> PublishedVersion:
        """Pushes a version of the store, and moves an alias at the server.

        Raises:
            RefusedError: the server refused the version, or it is not known whether it has it.
            NotPromotedError: it has the version, and the alias did not move, or may not have.
        """
        say(f"pushing {version.model} {version.version} to {self._url}")
        lost = f"it is not known whether {version.model} {version.version} is at {self._url}"
        done = self._do(lost, say, act="push", version=version.version, alias=alias)
        notes = [*version.notes, done["breaks"], done["note"]]
        there = replace(
            version,
            store=self._url,
            alias=alias if done["moved"] else None,
            notes=tuple(filter(None, notes)),
        )
        if done["refusal"]:
            raise NotPromotedError(
                f"{version.model} {version.version} is at {self._url}, and {done['refusal']}",
                there,
            )
        return there

    def _do(self, lost: str, say: Callable[[str], None], **task: Any) -> dict[str, Any]:
        """Does a task; `lost` says what is known if its process ends without a result."""
        try:
            with OwnProcess(_MODULE, json.dumps({**self._task, **task})) as process:
                for event in process.events():
                    if "step" in event:
                        say(event["step"])
                    elif "error" in event:
                        known = "" if event["is_unknown"] else "nothing was published: "
                        raise RefusedError(f"{known}{event['error']}")
                    elif "done" in event:
                        found: dict[str, Any] = event["done"]
                        return found
        except OwnProcessError as error:
            raise RefusedError(f"{lost}: {error}") from None
        raise RefusedError(f"{lost}: our process ended without a result")
