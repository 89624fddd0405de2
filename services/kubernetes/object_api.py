"""Creates, reads, watches, changes and deletes objects of one kind through the API of Kubernetes.

In: objects as JSON values. Out: the same. It uses only the standard library: a few calls need no
client. The token is read anew for each call, since Kubernetes rotates it. All calls block.

Source: Kubernetes API concepts; paths `/apis/GROUP/VERSION/namespaces/NAMESPACE/PLURAL[/NAME]`.
"""

import contextlib
import http.client
import json
import os
import socket
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from pydantic import ConfigDict

from flambeau.protocol.strict import StrictModel
from model_store.storage.plain_file import read_plain_file
from services.settings import ConfigError

TIMEOUT_S = 10.0
MAX_ANSWER_BYTES = 8 * 2**20
MAX_LINE_BYTES = 2 * 2**20
"""Limit of one event of a watch; etcd stores objects of at most 1.5 MiB."""
MAX_TOKEN_BYTES = 64 * 2**10
PAGE = 100
"""Objects of one page of a list."""
MAX_PAGES = 50
"""Pages of a list."""
GONE = 410
"""Status of a watch, or of a page, from a state that the API no longer has."""

Object = dict[str, Any]


class ClusterSettings(StrictModel):
    """The API of a cluster, and the account there; a part of other settings."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    kubernetes_url: str = "https://kubernetes.default.svc"
    """URL of the Kubernetes API; the default is right within a cluster."""
    kubernetes_account: str = "/var/run/secrets/kubernetes.io/serviceaccount"
    """Folder with the service account's `token`, `ca.crt` and `namespace`; without a `ca.crt` the
    system's authorities are trusted, without a `token` none is sent."""
    kubernetes_namespace: str = ""
    """Namespace of the objects; empty for the service account's own namespace."""


class KubernetesError(Exception):
    """The API refused a call, or is unavailable.

    Attributes:
        status: HTTP status; 0 if there was no response.
    """

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status

    @property
    def is_final(self) -> bool:
        """True if a retry of the call would be refused again."""
        return 400 <= self.status < 500 and self.status not in (408, 429)


class ObjectApi:
    """The objects of one kind in one namespace.

    Args:
        settings: URL of the API, and service account.
        group_version: group and version, such as `batch/v1`.
        plural: the kind as paths have it, such as `jobs`.

    Raises:
        ConfigError: no namespace is known, or the URL is no web address.
    """

    def __init__(self, settings: ClusterSettings, group_version: str, plural: str) -> None:
        self._account = Path(settings.kubernetes_account)
        url = settings.kubernetes_url.rstrip("/")
        if not url.startswith(("https://", "http://")):
            raise ConfigError(f"kubernetes_url is {url!r}; give an https:// address")
        self.namespace = settings.kubernetes_namespace or self._read("namespace")
        if not self.namespace:
            raise ConfigError(
                f"there is no file {self._account / 'namespace'}: outside a cluster, give "
                "kubernetes_namespace"
            )
        self._url = f"{url}/apis/{group_version}/namespaces/{self.namespace}/{plural}"
        self._tls = None
        if url.startswith("https://"):
            authorities = self._account / "ca.crt"
            self._tls = ssl.create_default_context(
                cafile=str(authorities) if authorities.exists() else None
            )

    def create(self, wanted: Object) -> None:
        """Creates an object; an existing one of its name remains.

        Raises:
            KubernetesError: the API refused, or is unavailable.
        """
        try:
            self._call("POST", "", wanted)
        except KubernetesError as error:
            if error.status != 409:
                raise

    def read(self, name: str) -> Object | None:
        """Reads an object; returns None if there is none.

        Raises:
            KubernetesError: the API refused, or is unavailable.
        """
        try:
            return self._call("GET", name)
        except KubernetesError as error:
            if error.status == 404:
                return None
            raise

    def delete(self, found: Object) -> bool:
        """Deletes an object that was read, and no newer one of the same name.

        Returns:
            True if it is deleted with its pods. Until they are, it exists as being deleted.

        Raises:
            KubernetesError: the API refused, or is unavailable.
        """
        name, uid = found["metadata"]["name"], found["metadata"]["uid"]
        if "deletionTimestamp" not in found["metadata"]:
            wanted = {"propagationPolicy": "Foreground", "preconditions": {"uid": uid}}
            try:
                self._call("DELETE", name, wanted)
            except KubernetesError as error:
                if error.status not in (404, 409):
                    raise
        left = self.read(name)
        return left is None or left["metadata"]["uid"] != uid

    def set_status(self, found: Object, status: Object) -> Object:
        """Replaces the status of an object that was read; returns the object as it is then.

        Raises:
            KubernetesError: 409 if the object was changed since; the API refused, or is
                unavailable.
        """
        name = found["metadata"]["name"]
        return self._call("PUT", f"{name}/status", {**found, "status": status})

    def set_finalizers(self, found: Object, finalizers: list[str]) -> Object:
        """Replaces the finalizers of an object that was read; errors are those of `set_status`."""
        metadata = found["metadata"]
        changes = {
            "metadata": {
                "finalizers": finalizers,
                "resourceVersion": metadata["resourceVersion"],
                "uid": metadata["uid"],
            }
        }
        return self._call("PATCH", metadata["name"], changes, "application/merge-patch+json")

    def list(self) -> tuple[list[Object], str]:
        """Returns all objects, and the version of this state, at which a watch goes on.

        Raises:
            KubernetesError: the API refused, or is unavailable; there are too many objects.
        """
        found: list[Object] = []
        following = ""
        for _ in range(MAX_PAGES):
            query = {"limit": str(PAGE)} | ({"continue": following} if following else {})
            page = self._call("GET", f"?{urlencode(query)}")
            found += page.get("items", [])
            metadata = page.get("metadata", {})
            following = metadata.get("continue", "")
            if not following:
                return found, str(metadata.get("resourceVersion", ""))
        raise KubernetesError(
            f"there are more than {PAGE * MAX_PAGES:,} objects at {self._url}; delete old ones"
        )

    def watch(self, version: str, for_s: int, stop: "WatchStop") -> Iterator[Object]:
        """Yields the events after a version, until the API ends the watch or `stop` does.

        Args:
            version: version of the state that is known.
            for_s: seconds after which the API ends it.
            stop: ends it from another thread.

        Raises:
            KubernetesError: the API refused (`GONE`: list again), or the connection broke.
        """
        query = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(for_s),
        }
        request = self._request("GET", f"?{urlencode(query)}", None, "application/json")
        with self._open(request, for_s + TIMEOUT_S) as answer, stop.ending(answer):
            while not stop.is_set:
                event = self._event(answer)
                if event is None:
                    return
                yield event

    def _event(self, answer: http.client.HTTPResponse) -> Object | None:
        try:
            line = answer.readline(MAX_LINE_BYTES + 1)
            if not line.strip():
                return None
            if len(line) > MAX_LINE_BYTES:
                raise ValueError(f"an event has more than {MAX_LINE_BYTES:,} bytes")
            event = json.loads(line)
            kind, found = str(event["type"]), event["object"]
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
            raise KubernetesError(f"the watch of {self._url} broke: {error}") from error
        if kind == "ERROR":
            raise KubernetesError(
                f"the watch of {self._url} ended: {found.get('message', '')}",
                int(found.get("code", 0)),
            )
        return {"type": kind, "object": found}

    def _call(
        self, method: str, name: str, body: Any = None, content_type: str = "application/json"
    ) -> Object:
        request = self._request(method, name, body, content_type)
        with self._open(request, TIMEOUT_S) as answer:
            try:
                data = answer.read(MAX_ANSWER_BYTES + 1)
                if len(data) > MAX_ANSWER_BYTES:
                    raise ValueError(f"it has more than {MAX_ANSWER_BYTES:,} bytes")
                found = json.loads(data)
            except (OSError, http.client.HTTPException, ValueError) as error:
                raise KubernetesError(f"no response from {self._url}: {error}") from error
        if not isinstance(found, dict):
            raise KubernetesError(f"Kubernetes at {self._url} did not answer with an object")
        return found

    def _request(
        self, method: str, name: str, body: Any, content_type: str
    ) -> urllib.request.Request:
        headers = {"Accept": "application/json", "Content-Type": content_type}
        if token := self._read("token"):
            headers["Authorization"] = f"Bearer {token}"
        separator = "" if not name or name.startswith("?") else "/"
        return urllib.request.Request(  # noqa: S310 - the address was checked
            f"{self._url}{separator}{name}",
            data=None if body is None else json.dumps(body).encode(),
            headers=headers,
            method=method,
        )

    def _open(self, request: urllib.request.Request, timeout_s: float) -> http.client.HTTPResponse:
        try:
            answer: http.client.HTTPResponse = urllib.request.urlopen(  # noqa: S310
                request, timeout=timeout_s, context=self._tls
            )
            return answer
        except urllib.error.HTTPError as error:
            with error:
                said = _message(error.read(MAX_ANSWER_BYTES)) or error.reason
            raise KubernetesError(
                f"Kubernetes answered {error.code} to {request.method} {request.full_url}: {said}",
                error.code,
            ) from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise KubernetesError(f"no response from Kubernetes at {self._url}: {error}") from error

    def _read(self, name: str) -> str:
        try:
            return read_plain_file(self._account / name, MAX_TOKEN_BYTES).decode().strip()
        except OSError:
            return ""


class WatchStop:
    """Ends a watch from another thread, also one that waits for its next event."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connection: socket.socket | None = None
        self.is_set = False

    def set(self) -> None:
        """Ends the watch that runs, and those that follow."""
        with self._lock:
            self.is_set = True
            if self._connection is not None:
                with contextlib.suppress(OSError):  # its other end was faster
                    self._connection.shutdown(socket.SHUT_RDWR)

    @contextlib.contextmanager
    def ending(self, answer: http.client.HTTPResponse) -> Iterator[None]:
        """Lets `set` end the reading of an answer in the block."""
        with self._lock, contextlib.suppress(OSError):
            self._connection = socket.socket(fileno=os.dup(answer.fileno()))
            if self.is_set:
                self._connection.shutdown(socket.SHUT_RDWR)
        try:
            yield
        finally:
            with self._lock:
                if self._connection is not None:
                    self._connection.close()
                self._connection = None


def _message(body: bytes) -> str:
    """Returns the message of a `Status` object."""
    try:
        return str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace")[:200]
