"""Signs versions and verifies who signed them, with OpenSSF Model Signing.

In: the sha256 of each file of a version. Out: a Sigstore bundle (`model.sig`), or the trusted key
that made it.

Rules kept here:
- signed is every file of the version's folder but the signature itself and the claim, and so the
  manifest too, which says model, version and every other digest;
- the bundle is that project's own format, made and checked by its code: its command verifies the
  same folder (docs/signing.md);
- only digests come in, so a version in a bucket is verified without being downloaded first;
- that library takes a second to import, so whoever neither signs nor verifies never imports it.

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
"""A bundle takes about 300 bytes a file."""
_BUNDLE = DocumentLimits(MAX_SIGNATURE_BYTES, 1_000)
_STATEMENT = DocumentLimits(MAX_SIGNATURE_BYTES, 25_000)
"""What a bundle says that was signed: five values a file."""

MAX_TOLD = 2_000
"""Characters of what is wrong with a signature."""

Digests = Mapping[str, str]
"""The sha256 of each file of a version, as hexadecimal digits, by the file's name."""


def signer_with(private_key: Path) -> Callable[[Digests], bytes]:
    """A function that signs the files of a version.

    Args:
        private_key: a PEM file without a password.

    Returns:
        What makes the bundle out of the digests of all its files but signature and claim.

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
        digests: of all files of the version but signature and claim, as they are now.
        trusted: the keys that are trusted.
        where: the version, for messages.

    Returns:
        The key that signed them.

    Raises:
        ForeignKeyError: none of the trusted keys is the one the signature names.
        SignatureMismatchError: a file differs from what was signed, or the signature is broken.
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
        except Exception as error:  # the bundle may be anything, and so may what reading it raises
            raise SignatureMismatchError(
                f"{where} is not what the key '{key.name}' signed: "
                f"{_reason(error, signed, digests)}; fetch or publish the version again, and find "
                "out who changed it"
            ) from error
    return key


def _reason(error: Exception, signed: Digests, digests: Digests) -> str:
    """Why verifying failed, in words."""
    if not str(error).startswith("Signature mismatch"):  # then the bundle itself is at fault
        return str(error)[:MAX_TOLD] or "the signature is not by the key it names"
    return ", ".join(
        f"{file} has sha256 {_short(digests.get(file))}, signed was {_short(signed.get(file))}"
        for file in sorted({*signed, *digests})
        if signed.get(file) != digests.get(file)
    )[:MAX_TOLD]


def _short(digest: str | None) -> str:
    return f"{digest[:16]}…" if digest else "none"


def _signer(bundle: bytes, where: str) -> tuple[str, Digests]:
    """The fingerprint of the key that a bundle says it is by, and what it says was signed.

    Both parts of it are read within limits here, before the library reads them without.
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
    """One of the library's public modules."""
    import importlib

    try:
        return importlib.import_module(f"model_signing.{module}")
    except ModuleNotFoundError as error:
        raise SigningUnavailableError(
            f"{error}; signatures need it: {install_command('signing')}"
        ) from error


def _known(digests: Digests) -> "hashing.Config":
    """Has the library take the files of a folder, and their digests, from us.

    A version's files may lie in a bucket, and their digests were checked already.
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
