"""Checks for S3 credentials before the first request to a bucket.

obstore reads them from the environment: keys, a web identity (IRSA of EKS), a container's endpoint
(EKS Pod Identity, ECS); otherwise from the instance metadata service of EC2. Profiles in `~/.aws`
are not read.

Source: https://docs.rs/object_store, `AmazonS3Builder::from_env`.
"""

import os

from model_store.storage.metadata_service import answers

METADATA_URL = "http://169.254.169.254"
SOURCES = (
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
"""Environment variables each of which suffices as a source of credentials."""


def missing_credentials() -> str:
    """Returns the reason why an S3 bucket cannot be accessed; empty if there are credentials."""
    if is_set("AWS_SKIP_SIGNATURE") or any(map(os.environ.get, SOURCES)):
        return ""
    key, secret = (os.environ.get(f"AWS_{name}") for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"))
    if key and secret:
        return ""
    token, role = (
        os.environ.get(f"AWS_{name}") for name in ("WEB_IDENTITY_TOKEN_FILE", "ROLE_ARN")
    )
    if token and role:
        return ""
    if token:
        return (
            "AWS_WEB_IDENTITY_TOKEN_FILE is set without AWS_ROLE_ARN, the role that the token's "
            "owner takes; set both"
        )
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
        "identity (AWS_WEB_IDENTITY_TOKEN_FILE, AWS_ROLE_ARN); profiles in ~/.aws are not read, "
        "and no EC2 instance metadata service answers here"
    )


def is_set(name: str) -> bool:
    """Returns True if a variable is set to a word that obstore takes for true."""
    return os.environ.get(name, "").lower() in ("1", "true", "yes", "on")


def _has_metadata_service() -> bool:
    url = os.environ.get("AWS_METADATA_ENDPOINT", METADATA_URL)
    headers = {"x-aws-ec2-metadata-token-ttl-seconds": "60"}
    return answers(url, "PUT /latest/api/token", headers)
