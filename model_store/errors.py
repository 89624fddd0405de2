"""Everything the model store can refuse, as one tree.

StoreError
├── BadNameError               a model or file name that cannot be a path
├── ModelNotFoundError         no version of this model is published
├── VersionNotFoundError       the model is there, this version is not
├── ManifestError              a manifest that breaks its rules
│   └── ManifestFromFutureError    written by a newer flambeau
├── DigestMismatchError        bytes that are not those the manifest names
├── ConflictError              somebody else published or moved a pointer first
└── StorageError               the disk or the bucket failed (full, forbidden, unreachable)
"""


class StoreError(Exception):
    """Root of the tree. The message says what was wrong, which value, and what to do."""


class BadNameError(StoreError):
    """A model or file name outside the allowed alphabet."""


class ModelNotFoundError(StoreError):
    """The store holds no published version of the model."""


class VersionNotFoundError(StoreError):
    """The store holds the model but not this version of it."""


class ManifestError(StoreError):
    """A manifest that is not JSON or breaks the schema."""


class ManifestFromFutureError(ManifestError):
    """A manifest whose schema is newer than this program reads."""


class DigestMismatchError(StoreError):
    """A file whose bytes differ from the digest in the manifest."""


class ConflictError(StoreError):
    """Another writer took the version or the pointer generation first."""


class StorageError(StoreError):
    """The storage under the store failed; nothing was published."""
