"""The keys of one user or machine: private ones to sign with, public ones to trust.

    <folder>/private/NAME.pem    signs; never leaves the machine (mode 0600)
    <folder>/public/NAME.pem     its other half, to hand out
    <folder>/trusted/NAME.pem    whose signatures are accepted here, ours or other people's

Keys are elliptic (P-256 when made here) in PEM. A key's fingerprint is the sha256 of its public
PEM: what `sha256sum NAME.pem` prints, and what a signature calls its `hint`.

Rules kept here: a key file appears whole or not at all and never replaces another; no function
returns or prints what is in a private key.
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
"""Those OpenSSF Model Signing takes."""

MAX_KEY_BYTES = 16_384
"""A PEM of these curves has under 500; whatever is larger is another file."""

MAX_TRUSTED_KEYS = 1000


@dataclass(frozen=True, slots=True)
class TrustedKey:
    """A public key whose signatures are accepted."""

    name: str
    fingerprint: str
    file: Path


@dataclass(frozen=True, slots=True)
class KeyListing:
    """What there is to say of one key."""

    name: str
    fingerprint: str
    is_private: bool
    """Whether its private half is here, to sign with."""
    is_trusted: bool


class KeyFolder:
    """The keys in one folder, which need not exist yet.

    Args:
        folder: empty for `flambeau/keys` in the user's configuration folder, `~/.config`.

    Raises:
        SigningUnavailableError: the default is asked for, and the libraries are not installed.
    """

    def __init__(self, folder: str | Path = "") -> None:
        self.folder = Path(folder).expanduser() if folder else _default_folder()

    @property
    def trusted_folder(self) -> Path:
        """Where the public keys lie whose signatures are accepted."""
        return self.folder / "trusted"

    def new(self, name: str) -> TrustedKey:
        """Makes a key pair on P-256.

        Returns:
            Its public half, which is not trusted yet.

        Raises:
            BadNameError: the name cannot be a file's.
            KeyFileError: there is a key of this name, or the folder cannot be written.
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
        """Copies a public key to those that are trusted; trusting it again is fine.

        Args:
            file: PEM of the public key.
            name: to keep it under; the file's own unless given.

        Raises:
            BadNameError: the name cannot be a file's.
            KeyFileError: the file is no public key, or another key has this name.
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
                "or delete that file if it shall be trusted no longer"
            )
        _create(target, public, mode=0o644)
        return TrustedKey(name, fingerprint, target)

    def keys(self) -> list[KeyListing]:
        """Every key, by name: those made here and those trusted.

        Raises:
            KeyFileError: a file is no public key.
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
        """The private key to sign with.

        Args:
            name: of a key here, or a PEM file; the only key there is unless given.

        Returns:
            Its file; None when no name is given and there is no key.

        Raises:
            KeyFileError: no such key, or no name where there are several.
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
    """The public keys in a folder, every `*.pem` of it; none if it is not there.

    Raises:
        KeyFileError: a file is no public key, or there are more than `MAX_TRUSTED_KEYS`.
        SigningUnavailableError: the libraries are not installed.
    """
    files = sorted(folder.glob("*.pem"))
    if len(files) > MAX_TRUSTED_KEYS:
        raise KeyFileError(
            f"{folder} holds {len(files)} keys; trust at most {MAX_TRUSTED_KEYS}, so that "
            "somebody can know them all"
        )
    return [TrustedKey(file.stem, _fingerprint(_read_public(file)), file) for file in files]


def _default_folder() -> Path:
    """As the XDG Base Directory Specification has it."""
    with _libraries():
        from platformdirs import user_config_path
    return user_config_path("flambeau") / "keys"


def _read_public(file: Path) -> bytes:
    """A public key as PEM, written the one way that has the fingerprint others compute."""
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
            f"{file} holds a private key, which never leaves whoever signs with it; "
            "give the public half, which lies in the folder 'public'"
        )
    try:
        key = load_pem_public_key(data)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise KeyFileError(
            f"{file} holds no public key in PEM; make one with flambeau keys new"
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
    """Writes a file that must not exist, readable by nobody else until it is whole."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.NamedTemporaryFile(dir=path.parent) as draft:  # made with mode 0600
            draft.write(data)
            draft.flush()
            os.fsync(draft.fileno())
            os.fchmod(draft.fileno(), mode)
            os.link(draft.name, path)
    except FileExistsError as error:
        raise KeyFileError(f"there is a key already at {path}; choose another name") from error
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
