"""Decides which artifacts must be signed before they are opened, and by which keys.

Rule: no file of an artifact is read before this check, which reads the keys anew at every load:
newly trusted keys are accepted, and removed keys are not.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, assert_never

from pydantic import ConfigDict

from flambeau.protocol.strict import StrictModel
from model_store.errors import (
    CryptographicSignatureError,
    ForeignKeyError,
    KeyFileError,
    SignatureMissingError,
    SigningUnavailableError,
)
from model_store.manifest import Artifact, Manifest
from model_store.signatures.key_folder import KeyFolder, TrustedKey, trusted_keys
from model_store.store import ModelStore

SignatureScope = Literal["remote_code", "code", "everything"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """Trusted keys, and the artifacts that need a signature."""

    keys_folder: str = ""
    """Folder of the trusted public keys; empty for the user's own."""
    signature_needed_for: SignatureScope = "remote_code"
    """Code from stores other than local folders, all code, or every artifact."""

    def needs_signature(
        self, artifact: Artifact, store_is_local: bool, has_python: bool = False
    ) -> bool:
        """Returns True if an artifact loads only if its version is signed by a trusted key.

        Args:
            artifact: artifact to load.
            store_is_local: True if it comes from a folder of this machine.
            has_python: True if the version has a Python step, which is code, before it.
        """
        is_code = has_python or artifact.is_code
        match self.signature_needed_for:
            case "remote_code":
                return is_code and not store_is_local
            case "code":
                return is_code
            case "everything":
                return True
        assert_never(self.signature_needed_for)

    def check_data(self, store: ModelStore, manifest: Manifest) -> None:
        """Checks that a version without code may be used, such as a pipeline.

        Raises:
            CryptographicSignatureError, KeyFileError, StorageError: as `check`.
        """
        if self.signature_needed_for == "everything":
            store.signer(manifest, self._keys())

    def check(self, store: ModelStore, manifest: Manifest, artifact: Artifact) -> None:
        """Checks that an artifact may be opened.

        Raises:
            CryptographicSignatureError: its version must be signed by a trusted key, and is not.
            KeyFileError: a trusted key cannot be read.
            SigningUnavailableError: the libraries that verify signatures are not installed.
            StorageError: the store is unavailable.
        """
        has_python = manifest.python_step is not None
        if not self.needs_signature(artifact, store.is_local, has_python):
            return
        try:
            store.signer(manifest, self._keys())
        except CryptographicSignatureError as error:
            what = "comes with Python code" if has_python else "is data"
            what = "is code" if artifact.is_code else what
            raise type(error)(
                f"{artifact.kind} {what} and loads here only when its version is signed by a "
                f"trusted key (signature_needed_for={self.signature_needed_for}): {error}"
            ) from error

    def check_arrival(self, store: ModelStore, manifest: Manifest) -> None:
        """Checks that a version that others send may enter a store: its code counts as remote.

        A version with a signature by a trusted key must match it, whatever it contains.

        Raises:
            CryptographicSignatureError, KeyFileError, SigningUnavailableError, StorageError: as
                `check`.
        """
        has_python = manifest.python_step is not None
        scope = self.signature_needed_for
        is_needed = scope == "everything" or any(
            self.needs_signature(artifact, False, has_python) for artifact in manifest.artifacts
        )
        if not is_needed and store.signature(manifest.model, manifest.version) is None:
            return
        try:
            store.signer(manifest, self._keys())
        except (ForeignKeyError, KeyFileError, SigningUnavailableError):
            if is_needed:
                raise
        except SignatureMissingError as error:
            raise SignatureMissingError(
                f"a version with code enters this store only if a trusted key has signed it "
                f"(signature_needed_for={scope}): {error}"
            ) from error

    def check_folder(self) -> None:
        """Checks that the folder of the keys exists, if one is set.

        Raises:
            KeyFileError: it does not.
        """
        if self.keys_folder and not Path(self.keys_folder).expanduser().is_dir():
            raise KeyFileError(
                f"trusted_keys is {self.keys_folder}, which is not a folder; give the folder with "
                "the public keys"
            )

    def _keys(self) -> list[TrustedKey]:
        if not self.keys_folder:
            return trusted_keys(KeyFolder().trusted_folder)
        self.check_folder()
        return trusted_keys(Path(self.keys_folder).expanduser())


class TrustSettings(StrictModel):
    """Settings of a process that opens artifacts, or lets them into a store."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    trusted_keys: str = ""
    """Folder of the public keys (`*.pem`) whose signatures are trusted; set it if keys are
    mounted. Empty for those of `flambeau keys trust`."""
    signature_needed_for: SignatureScope = "remote_code"
    """Artifacts that load only if signed by a trusted key: code from non-local stores
    (`remote_code`), all `code`, or `everything`; raise it if others can write to the store."""

    def trust(self) -> Trust:
        """Returns the keys and the artifacts that these settings name."""
        return Trust(keys_folder=self.trusted_keys, signature_needed_for=self.signature_needed_for)
