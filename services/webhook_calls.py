"""Calls of webhooks: a signed HTTP POST.

Headers and signature are those of the Standard Webhooks specification: `webhook-id`,
`webhook-timestamp` and `webhook-signature`, an HMAC-SHA256 over `id.timestamp.body`.

Rule: no redirect is followed: it could lead to any host.
"""

import base64
import hashlib
import hmac
import http.client
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

TIMEOUT_S = 10.0
"""Timeout of a call."""
NO_RESPONSE = 1
"""Stands for a status where there was no response."""
SECRET_PREFIX = b"whsec_"
LEAST_SECRET_BYTES = 24


class SecretError(ValueError):
    """The secret that webhooks are signed with cannot be used."""


def read_secret(file: str) -> bytes:
    """Reads a secret: `whsec_` and base64, or any other bytes as they are.

    Raises:
        SecretError: the file cannot be read, or holds less than `LEAST_SECRET_BYTES`.
    """
    if not file:
        raise SecretError("there are webhooks: set webhook_secret_file too, to sign with")
    try:
        secret = Path(file).read_bytes().strip()
    except OSError as error:
        raise SecretError(f"webhook_secret_file {file}: {error.strerror}") from error
    if secret.startswith(SECRET_PREFIX):
        try:
            secret = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
        except ValueError as error:
            raise SecretError(f"webhook_secret_file {file}: not base64 ({error})") from error
    if len(secret) < LEAST_SECRET_BYTES:
        raise SecretError(
            f"webhook_secret_file {file} holds {len(secret)} bytes; give {LEAST_SECRET_BYTES} or "
            "more"
        )
    return secret


def signature(secret: bytes, webhook_id: str, timestamp: int, body: bytes) -> str:
    """Returns the value of `webhook-signature`."""
    signed = b"%b.%d.%b" % (webhook_id.encode(), timestamp, body)
    return f"v1,{base64.b64encode(hmac.digest(secret, signed, hashlib.sha256)).decode()}"


class WebhookCalls:
    """Calls webhooks; each call blocks its thread.

    Args:
        secret: secret of the signature.
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._opener = urllib.request.build_opener(_NoRedirect)

    def post(self, url: str, webhook_id: str, body: bytes) -> int:
        """Calls once. Returns the status, or `NO_RESPONSE`."""
        now = int(time.time())
        headers = {
            "content-type": "application/json",
            "user-agent": "flambeau",
            "webhook-id": webhook_id,
            "webhook-timestamp": str(now),
            "webhook-signature": signature(self._secret, webhook_id, now, body),
        }
        request = urllib.request.Request(url, body, headers, method="POST")  # noqa: S310
        try:
            with self._opener.open(request, timeout=TIMEOUT_S) as reply:
                return int(reply.status)
        except urllib.error.HTTPError as error:
            return error.code
        except (OSError, http.client.HTTPException, ValueError):  # the host may send anything
            return NO_RESPONSE


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Follows no redirect."""
