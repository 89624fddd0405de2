"""Signs versions and verifies their signatures, with OpenSSF Model Signing.

In: the sha256 of each file of a version. Out: a Sigstore bundle (`model.sig`), or the trusted key
that signed it.

Rules:
- the signature covers every file of the version's folder except the signature and the claim, and so
  the manifest, which contains model, version and all other digests;
- the bundle is in that project's own format, made and verified by its code: its command-line tool
  verifies the same folder (docs/guides/signing.md);
- the input is digests only, so a version in a bucket is verified without a download;
- that library takes a second to import, so it is imported only to sign or verify.

Source: https://github.com/sigstore/model-transparency (key mode: a DSSE envelope over an in-toto
statement, ECDSA).
"""

import base64
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from model_store.document import DocumentLimits, parse_document
from model_store.errors import (
    DocumentError,
    ForeignKeyError,
    KeyFileError,
    SignatureMismatchError,
    SigningUnavailableError,
)
from model_store.host.install_advice import install_command
from model_store.manifest import CLAIM, SIGNATURE
from model_store.signatures.key_folder import TrustedKey

if TYPE_CHECKING:
    from model_signing import hashing

MAX_SIGNATURE_BYTES = 2**20
"""Limit of a bundle, which takes about 300 bytes per file."""
_BUNDLE = DocumentLimits(MAX_SIGNATURE_BYTES, 1_000)
_STATEMENT = DocumentLimits(MAX_SIGNATURE_BYTES, 25_000)
"""Limits of the signed statement in a bundle: five values per file."""

MAX_TOLD = 2_000
"""Characters of an error message about a signature."""

Digests = Mapping[str, str]
"""The sha256 of each file of a version, as hexadecimal digits, by the file's name."""


def signer_with(private_key: Path) -> Callable[[Digests], bytes]:
    """Returns a function that signs the files of a version.

    Args:
        private_key: a PEM file without a password.

    Returns:
        A function from the digests of all files except signature and claim to the bundle.

    Raises:
        KeyFileError: the file holds no private key, or one with a password.
        SigningUnavailableError: the libraries are not installed.
    """
    signing = _library("signing")
    try:
        signer = signing.Config().use_elliptic_key_signer(private_key=private_key)
    except (OSError, TypeError, ValueError) as error:  # TypeError: it has a password
        raise KeyFileError(
            f"cannot sign with {private_key}: {error}; give a private key in PEM, on P-256 and "
            "without a password, as flambeau keys new makes them"
        ) from error

    def sign(digests: Digests) -> bytes:
        with tempfile.TemporaryDirectory() as folder:
            bundle = Path(folder, SIGNATURE)
            signer.set_hashing_config(_known(digests)).sign(folder, bundle)
            return bundle.read_bytes()

    return sign


def verify(
    bundle: bytes, digests: Digests, trusted: Sequence[TrustedKey], where: str
) -> TrustedKey:
    """Checks that a trusted key signed exactly these files.

    Args:
        bundle: the bytes of the signature.
        digests: current digests of all files of the version except signature and claim.
        trusted: the trusted keys.
        where: the version, for messages.

    Returns:
        The key that signed them.

    Raises:
        ForeignKeyError: the key that the signature names is not trusted.
        SignatureMismatchError: a file changed after signing, or the signature is invalid.
        SigningUnavailableError: the libraries are not installed.
    """
    signer, signed = _signer(bundle, where)
    key = next((key for key in trusted if key.fingerprint == signer), None)
    if key is None:
        names = ", ".join(f"{key.name} {key.fingerprint[:16]}…" for key in trusted)
        raise ForeignKeyError(
            f"{where} is signed by the key {signer}, which is not trusted here "
            f"(trusted: {names or 'none'}); if you know whose key that is, get it from them and "
            "run flambeau keys trust FILE.pem"
        )
    config = _library("verifying").Config().use_elliptic_key_verifier(public_key=key.file)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, SIGNATURE)
        file.write_bytes(bundle)
        try:
            config.set_hashing_config(_known(digests)).verify(Path(folder), file)
        except Exception as error:  # a malformed bundle may raise any type
            raise SignatureMismatchError(
                f"{where} is not what the key '{key.name}' signed: "
                f"{_reason(error, signed, digests)}; fetch or publish the version again, and find "
                "out who changed it"
            ) from error
    return key


def _reason(error: Exception, signed: Digests, digests: Digests) -> str:
    """Returns the reason of a failed verification."""
    if not str(error).startswith("Signature mismatch"):  # then the bundle itself is invalid
        return str(error)[:MAX_TOLD] or "the signature is not by the key it names"
    return ", ".join(
        f"{file} has sha256 {_short(digests.get(file))}, signed was {_short(signed.get(file))}"
        for file in sorted({*signed, *digests})
        if signed.get(file) != digests.get(file)
    )[:MAX_TOLD]


def _short(digest: str | None) -> str:
    return f"{digest[:16]}…" if digest else "none"


def _signer(bundle: bytes, where: str) -> tuple[str, Digests]:
    """Returns the fingerprint of the key that a bundle names, and the digests that it signs.

    Envelope and statement are parsed within limits here; the library's own parsing has none.
    """
    try:
        document = parse_document(bundle, SIGNATURE, _BUNDLE)
        hint = document["verificationMaterial"]["publicKey"]["hint"]
        if not isinstance(hint, str):
            raise ValueError("it names no key")
        payload = base64.b64decode(document["dsseEnvelope"]["payload"])
        statement = parse_document(payload, f"what {SIGNATURE} says", _STATEMENT)
        files = statement["predicate"]["resources"]
        return hint, {str(file["name"]): str(file["digest"]) for file in files}
    except (DocumentError, ValueError, LookupError, TypeError) as error:
        reason = str(error) if isinstance(error, DocumentError) else repr(error)[:MAX_TOLD]
        raise SignatureMismatchError(
            f"{where}: {SIGNATURE} is not a signature made with a key ({reason}); "
            "fetch or publish the version again"
        ) from error


def _library(module: str) -> Any:
    """Imports one of the library's public modules."""
    import importlib

    try:
        return importlib.import_module(f"model_signing.{module}")
    except ModuleNotFoundError as error:
        raise SigningUnavailableError(
            f"{error}; signatures need it: {install_command('signing')}"
        ) from error


def _known(digests: Digests) -> "hashing.Config":
    """Returns a configuration that gives the library our list of files and digests.

    A version's files may be in a bucket, and their digests were checked already.
    """
    from model_signing import hashing, manifest
    from model_signing._hashing.hashing import Digest

    ignored = [PurePosixPath(name) for name in (SIGNATURE, CLAIM)]
    how = manifest.SerializationType.from_args(
        {
            "method": "files",
            "hash_type": "sha256",
            "allow_symlinks": False,
            "ignore_paths": ignored,
        }
    )
    items = [how.new_item(n, Digest("sha256", bytes.fromhex(d))) for n, d in digests.items()]

    class KnownDigests(hashing.Config):
        def hash(self, model_path: Any, *, files_to_hash: Any = None) -> manifest.Manifest:
            return manifest.Manifest("model", items, how)

    return KnownDigests()  # type: ignore[no-untyped-call]
