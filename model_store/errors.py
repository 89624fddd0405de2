"""Everything the model store can refuse, as one tree.

StoreError
├── StoreNotFoundError         a folder that is to be read, and is not there
├── BadNameError               a model or file name that cannot be a path
├── ModelNotFoundError         no version of this model is published
├── VersionNotFoundError       the model is there, this version is not
├── DocumentError              a JSON file that is too large, too deep, or no JSON
├── ForeignLayoutError         a place that holds something, and is no store
├── ManifestError              a manifest that breaks its rules
│   └── ManifestFromFutureError    written by a newer flambeau
├── DigestMismatchError        bytes that are not those the manifest names
├── GoldenMismatchError        golden rows that are not those of the signature
├── CertificateError           a certificate that breaks its rules
├── SampleError                a payload sample that breaks its rules
├── CryptographicSignatureError   a version that no trusted key vouches for
│   ├── SignatureMissingError      it carries no signature, or lost it
│   ├── ForeignKeyError            signed by a key that is not trusted here
│   └── SignatureMismatchError     signed, and changed since
├── KeyFileError               a key that is not there, not a key, or there already
├── SigningUnavailableError    the libraries that sign and verify are not installed
├── BumpTooSmallError          a semantic version that would hide a change from callers
├── UnsafeOnnxError            an ONNX file that asks for more than its own bytes
├── ArchiveError               a torch file that inflates to far more than it is
├── ConflictError              somebody else published or moved a pointer first
│   └── StalePointerError          an alias no longer names what a decision was made by
└── StorageError               the disk or the bucket failed (full, forbidden, unreachable)
    └── TooLargeError              a file that has more bytes than are read of it
"""


class StoreError(Exception):
    """Root of the tree. The message says what was wrong, which value, and what to do."""


class StoreNotFoundError(StoreError):
    """A store that is only to be read lies in a folder that does not exist."""


class BadNameError(StoreError):
    """A model or file name outside the allowed alphabet."""


class ModelNotFoundError(StoreError):
    """The store holds no published version of the model."""


class VersionNotFoundError(StoreError):
    """The store holds the model but not this version of it."""


class DocumentError(StoreError):
    """A JSON file that has more than is read of one, or does not say what it should."""


class ForeignLayoutError(StoreError):
    """A store that holds something other than models, into which nothing is written unasked."""


class ManifestError(StoreError):
    """A manifest that is not JSON or breaks the schema."""


class ManifestFromFutureError(ManifestError):
    """A manifest whose schema is newer than this program reads."""


class DigestMismatchError(StoreError):
    """A file whose bytes differ from the digest in the manifest."""


class GoldenMismatchError(StoreError):
    """A golden file that is no safetensors, or whose tensors do not fit the signature."""


class CertificateError(StoreError):
    """A certificate that is not JSON, breaks the schema, or is of another version."""


class SampleError(StoreError):
    """A payload sample that is not JSON, breaks the schema, or has values that do not fit."""


class CryptographicSignatureError(StoreError):
    """A version whose files no trusted key vouches for, where one must."""


class SignatureMissingError(CryptographicSignatureError):
    """A version without a signature: published without a key, or stripped of it since."""


class ForeignKeyError(CryptographicSignatureError):
    """A version signed by a key that is not trusted here."""


class SignatureMismatchError(CryptographicSignatureError):
    """A version whose files, or whose signature, are not as they were signed."""


class KeyFileError(StoreError):
    """A key file that is missing, holds no usable key, or would replace another."""


class SigningUnavailableError(StoreError):
    """Signing or verifying was asked for, and its libraries are not installed."""


class BumpTooSmallError(StoreError):
    """A version that differs from the one before by more than its semantic version would say."""


class UnsafeOnnxError(StoreError):
    """An ONNX file that is not one, reads other files, or needs a library of operators."""


class ArchiveError(StoreError):
    """A file of torch that is no zip archive, or one that inflates to far more than it is."""


class ConflictError(StoreError):
    """Another writer took the version or the pointer generation first."""


class StalePointerError(ConflictError):
    """An alias names another version than the one it was expected to name."""


class StorageError(StoreError):
    """The storage under the store failed; nothing was published."""


class TooLargeError(StorageError):
    """A file with more bytes than are read of its kind; none of them was read."""
