"""Manages the keys of one user or machine: private keys for signing, trusted public keys.

    <folder>/private/NAME.pem    private key, which never leaves the machine (mode 0600)
    <folder>/public/NAME.pem     its public half, to distribute
    <folder>/trusted/NAME.pem    public key whose signatures are accepted here, own or foreign

Keys are elliptic (P-256 if generated here) in PEM. A key's fingerprint is the sha256 of its public
PEM: the output of `sha256sum NAME.pem`, and the `hint` of a signature.

Rules: a key file appears whole or not at all and never replaces another; no function returns or
prints the content of a private key.
"""

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from model_store.errors import KeyFileError, SigningUnavailableError
from model_store.host.install_advice import install_command
from model_store.manifest import check_name
from model_store.storage.plain_file import read_plain_file

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

CURVES = frozenset({"secp256r1", "secp384r1", "secp521r1"})
"""Curves that OpenSSF Model Signing supports."""

MAX_KEY_BYTES = 16_384
"""Limit of a key file; a PEM of these curves has under 500 bytes."""

MAX_TRUSTED_KEYS = 1000


@dataclass(frozen=True, slots=True)
class TrustedKey:
    """A public key whose signatures are accepted."""

    name: str
    fingerprint: str
    file: Path


@dataclass(frozen=True, slots=True)
class KeyListing:
    """One key in a listing of the folder."""

    name: str
    fingerprint: str
    is_private: bool
    """True if its private half is in the folder."""
    is_trusted: bool


class KeyFolder:
    """The keys in one folder, which need not exist yet.

    Args:
        folder: path; empty for `flambeau/keys` in the user's configuration folder, `~/.config`.

    Raises:
        SigningUnavailableError: the default is requested, and the libraries are not installed.
    """

    def __init__(self, folder: str | Path = "") -> None:
        self.folder = Path(folder).expanduser() if folder else _default_folder()

    @property
    def trusted_folder(self) -> Path:
        """Folder of the public keys whose signatures are accepted."""
        return self.folder / "trusted"

    def new(self, name: str) -> TrustedKey:
        """Generates a key pair on P-256.

        Returns:
            Its public half, which is not trusted yet.

        Raises:
            BadNameError: the name is not a valid file name.
            KeyFileError: a key of this name exists, or the folder cannot be written.
            SigningUnavailableError: the libraries are not installed.
        """
        path = self._private_file(check_name(name, "key name"))
        with _libraries():
            from cryptography.hazmat.primitives import serialization
            from cryptography.hazmat.primitives.asymmetric import ec
        key = ec.generate_private_key(ec.SECP256R1())
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        public_file = self.folder / "public" / f"{name}.pem"
        _create(path, private, mode=0o600)
        public = _public_pem(key.public_key())
        _create(public_file, public, mode=0o644)
        return TrustedKey(name, _fingerprint(public), public_file)

    def trust(self, file: Path, name: str = "") -> TrustedKey:
        """Copies a public key to the trusted keys; trusting it again is not an error.

        Args:
            file: PEM of the public key.
            name: name of the trusted key; by default that of the file.

        Raises:
            BadNameError: the name is not a valid file name.
            KeyFileError: the file is not a public key, or another key has this name.
            SigningUnavailableError: the libraries are not installed.
        """
        name = check_name(name or file.stem, "key name")
        public = _read_public(file)
        fingerprint = _fingerprint(public)
        target = self.trusted_folder / f"{name}.pem"
        if target.exists():
            if _fingerprint(_read_public(target)) == fingerprint:
                return TrustedKey(name, fingerprint, target)
            raise KeyFileError(
                f"another key is trusted as '{name}' ({target}); choose another name with --name, "
                "or delete that file to stop trusting it"
            )
        _create(target, public, mode=0o644)
        return TrustedKey(name, fingerprint, target)

    def keys(self) -> list[KeyListing]:
        """Returns all own and trusted keys, by name.

        Raises:
            KeyFileError: a file is not a public key.
            SigningUnavailableError: the libraries are not installed.
        """
        trusted = {key.fingerprint: key for key in trusted_keys(self.trusted_folder)}
        own = {key.fingerprint: key for key in trusted_keys(self.folder / "public")}
        listings = [
            KeyListing(
                key.name,
                fingerprint,
                is_private=fingerprint in own and self._private_file(key.name).exists(),
                is_trusted=fingerprint in trusted,
            )
            for fingerprint, key in (trusted | own).items()
        ]
        return sorted(listings, key=lambda key: (key.name, key.fingerprint))

    def signing_key(self, name: str = "") -> Path | None:
        """Returns the private key to sign with.

        Args:
            name: name of a key in the folder, or path of a PEM file; empty for the only key.

        Returns:
            Its file; None if no name is given and there is no key.

        Raises:
            KeyFileError: no such key, or no name is given and there are several keys.
        """
        if name:
            is_file = "/" in name or name.endswith(".pem")
            path = Path(name).expanduser() if is_file else self._private_file(name)
            if path.is_file():
                return path
            raise KeyFileError(
                f"there is no private key '{name}' ({path}); here are: "
                f"{', '.join(self._private_names()) or 'none'}; make one with flambeau keys new"
            )
        names = self._private_names()
        if len(names) > 1:
            raise KeyFileError(
                f"{self.folder} has the private keys {', '.join(names)}; "
                "say with --sign-with NAME which one signs"
            )
        return self._private_file(names[0]) if names else None

    def _private_file(self, name: str) -> Path:
        return self.folder / "private" / f"{name}.pem"

    def _private_names(self) -> list[str]:
        return sorted(file.stem for file in (self.folder / "private").glob("*.pem"))


def trusted_keys(folder: Path) -> list[TrustedKey]:
    """Reads all public keys (`*.pem`) in a folder; none if it does not exist.

    Raises:
        KeyFileError: a file is not a public key, or there are more than `MAX_TRUSTED_KEYS`.
        SigningUnavailableError: the libraries are not installed.
    """
    files = sorted(folder.glob("*.pem"))
    if len(files) > MAX_TRUSTED_KEYS:
        raise KeyFileError(f"{folder} holds {len(files)} keys; trust at most {MAX_TRUSTED_KEYS}")
    return [TrustedKey(file.stem, _fingerprint(_read_public(file)), file) for file in files]


def _default_folder() -> Path:
    """Returns the folder that the XDG Base Directory Specification prescribes."""
    with _libraries():
        from platformdirs import user_config_path
    return user_config_path("flambeau") / "keys"


def _read_public(file: Path) -> bytes:
    """Reads a public key as canonical PEM, so that fingerprints agree everywhere."""
    with _libraries():
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.serialization import load_pem_public_key
    try:
        data = read_plain_file(file, MAX_KEY_BYTES)
    except OSError as error:
        raise KeyFileError(f"cannot read the key {file}: {error.strerror}") from error
    if b"PRIVATE KEY" in data:
        raise KeyFileError(
            f"{file} holds a private key, which must stay secret; give the public half, from the "
            "folder 'public'"
        )
    try:
        key = load_pem_public_key(data)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise KeyFileError(
            f"{file} is not a public key in PEM; make one with flambeau keys new"
        ) from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name not in CURVES:
        raise KeyFileError(
            f"the key in {file} is not on one of the curves {', '.join(sorted(CURVES))}; "
            "make one with flambeau keys new"
        )
    return _public_pem(key)


def _public_pem(key: "EllipticCurvePublicKey") -> bytes:
    from cryptography.hazmat.primitives import serialization

    return key.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def _fingerprint(public_pem: bytes) -> str:
    return hashlib.sha256(public_pem).hexdigest()


def _create(path: Path, data: bytes, mode: int) -> None:
    """Writes a file that must not exist; others cannot read it until it is complete."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.NamedTemporaryFile(dir=path.parent) as draft:  # made with mode 0600
            draft.write(data)
            draft.flush()
            os.fsync(draft.fileno())
            os.fchmod(draft.fileno(), mode)
            os.link(draft.name, path)
    except FileExistsError as error:
        raise KeyFileError(f"{path} exists; choose another name") from error
    except OSError as error:
        raise KeyFileError(f"cannot write the key {path}: {error.strerror}") from error


@contextlib.contextmanager
def _libraries() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise SigningUnavailableError(
            f"{error}; keys and signatures need it: {install_command('signing')}"
        ) from error
