"""Checks for S3 credentials before the first request to a bucket.

obstore reads them from the environment: keys, a web identity (IRSA of EKS), a container's endpoint
(EKS Pod Identity, ECS); otherwise from the instance metadata service of EC2. Outside EC2 that
service does not exist, and a connection error to its address would hide the reason. Profiles in
`~/.aws` are not read.

Source: https://docs.rs/object_store, `AmazonS3Builder::from_env`.
"""

import os
import socket
from urllib.parse import urlsplit

METADATA_URL = "http://169.254.169.254"
METADATA_TIMEOUT_S = 1.0
"""Connect timeout; the service is on the machine's own host. EC2 answers within milliseconds."""
PORT = 80
SOURCES = (
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
"""Environment variables each of which suffices as a source of credentials."""


def missing_credentials() -> str:
    """Returns the reason why an S3 bucket cannot be accessed; empty if there are credentials."""
    if _flag("AWS_SKIP_SIGNATURE") or any(map(os.environ.get, SOURCES)):
        return ""
    key, secret = (os.environ.get(f"AWS_{name}") for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"))
    if key and secret:
        return ""
    if key or secret:
        there, lacks = ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY") if key else (
            "SECRET_ACCESS_KEY", "ACCESS_KEY_ID"
        )  # fmt: skip
        return f"AWS_{there} is set without AWS_{lacks}; set both"
    if _has_metadata_service():
        return ""
    return (
        "there are no AWS credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or "
        "AWS_SKIP_SIGNATURE=true for a public bucket; in Kubernetes give the pod a workload "
        "identity (AWS_WEB_IDENTITY_TOKEN_FILE); profiles in ~/.aws are not read, and no EC2 "
        "instance metadata service answers here"
    )


def _flag(name: str) -> bool:
    return os.environ.get(name, "").lower() in ("1", "true", "yes", "on")


def _has_metadata_service() -> bool:
    """Returns True if the service accepts a connection and answers with 200."""
    parts = urlsplit(os.environ.get("AWS_METADATA_ENDPOINT", METADATA_URL))
    request = (
        f"PUT /latest/api/token HTTP/1.1\r\nhost: {parts.netloc}\r\n"
        "x-aws-ec2-metadata-token-ttl-seconds: 60\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
    )
    try:
        address = (parts.hostname or "", parts.port or PORT)
        with socket.create_connection(address, METADATA_TIMEOUT_S) as connection:
            connection.sendall(request.encode())
            answer = connection.recv(64)
    except OSError:
        return False
    return b" 200 " in answer
