"""Creates, reads and deletes TrainJobs through the REST API of Kubernetes.

In: objects as JSON values. Out: the same. It uses only the standard library: three calls need no
client. The token is read anew for each call, since Kubernetes rotates it.

Source: Kubernetes API concepts; paths `/apis/GROUP/VERSION/namespaces/NAMESPACE/PLURAL[/NAME]`.
"""

import asyncio
import json
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from model_store.storage.plain_file import read_plain_file
from services.settings import ConfigError
from services.trainer.config import KubeflowSettings
from services.trainer.executors.train_job import API_GROUP, API_VERSION, PLURAL

TIMEOUT_S = 10.0
MAX_ANSWER_BYTES = 8 * 2**20
MAX_TOKEN_BYTES = 64 * 2**10


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


class TrainJobApi:
    """The TrainJobs of one namespace.

    Args:
        settings: URL of the API, and service account.

    Raises:
        ConfigError: no namespace is known, or the URL is no web address.
    """

    def __init__(self, settings: KubeflowSettings) -> None:
        self._account = Path(settings.kubernetes_account)
        url = settings.kubernetes_url.rstrip("/")
        if not url.startswith(("https://", "http://")):
            raise ConfigError(f"kubernetes_url is {url!r}; give an https:// address")
        namespace = settings.kubernetes_namespace or self._read("namespace")
        if not namespace:
            raise ConfigError(
                f"there is no file {self._account / 'namespace'}: outside a cluster, give "
                "kubernetes_namespace"
            )
        self._url = f"{url}/apis/{API_GROUP}/{API_VERSION}/namespaces/{namespace}/{PLURAL}"
        self._tls = None
        if url.startswith("https://"):
            authorities = self._account / "ca.crt"
            self._tls = ssl.create_default_context(
                cafile=str(authorities) if authorities.exists() else None
            )

    async def create(self, wanted: dict[str, Any]) -> None:
        """Creates an object; an existing one of its name remains.

        If the task is cancelled, it waits for the response first, so that a later read finds it.

        Raises:
            KubernetesError: the API refused, or is unavailable.
        """
        creating = asyncio.create_task(self._call("POST", "", wanted))
        try:
            await asyncio.shield(creating)
        except asyncio.CancelledError:
            await asyncio.wait({creating})
            raise
        except KubernetesError as error:
            if error.status != 409:
                raise

    async def read(self, name: str) -> dict[str, Any] | None:
        """Reads an object; returns None if there is none.

        Raises:
            KubernetesError: the API refused, or is unavailable.
        """
        try:
            return await self._call("GET", name)
        except KubernetesError as error:
            if error.status == 404:
                return None
            raise

    async def delete(self, found: dict[str, Any]) -> bool:
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
                await self._call("DELETE", name, wanted)
            except KubernetesError as error:
                if error.status not in (404, 409):
                    raise
        left = await self.read(name)
        return left is None or left["metadata"]["uid"] != uid

    async def _call(self, method: str, name: str, body: Any = None) -> dict[str, Any]:
        return await asyncio.to_thread(self._call_here, method, name, body)

    def _call_here(self, method: str, name: str, body: Any) -> dict[str, Any]:
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        if token := self._read("token"):
            headers["Authorization"] = f"Bearer {token}"
        request = urllib.request.Request(  # noqa: S310 - the address was checked
            f"{self._url}/{name}" if name else self._url,
            data=None if body is None else json.dumps(body).encode(),
            headers=headers,
            method=method,
        )
        try:
            with urllib.request.urlopen(  # noqa: S310
                request, timeout=TIMEOUT_S, context=self._tls
            ) as answer:
                found = json.loads(answer.read(MAX_ANSWER_BYTES))
        except urllib.error.HTTPError as error:
            with error:
                said = _message(error.read(MAX_ANSWER_BYTES)) or error.reason
            raise KubernetesError(
                f"Kubernetes answered {error.code} to {method} {request.full_url}: {said}",
                error.code,
            ) from error
        except (OSError, ValueError) as error:
            raise KubernetesError(f"no response from Kubernetes at {self._url}: {error}") from error
        if not isinstance(found, dict):
            raise KubernetesError(f"Kubernetes at {self._url} did not answer with an object")
        return found

    def _read(self, name: str) -> str:
        try:
            return read_plain_file(self._account / name, MAX_TOKEN_BYTES).decode().strip()
        except OSError:
            return ""


def _message(body: bytes) -> str:
    """Returns the message of a `Status` object."""
    try:
        return str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace")[:200]
