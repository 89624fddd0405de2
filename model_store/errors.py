"""The errors of the model store, as one tree.

StoreError
├── StoreNotFoundError         the folder of a store to read does not exist
├── BadNameError               a model or file name that is not a valid path segment
├── ModelNotFoundError         no version of this model is published
├── VersionNotFoundError       the model exists, this version does not
├── DocumentError              a JSON file that is too large, too deep, or not JSON
├── ForeignLayoutError         a location with content that is not a model store
├── ManifestError              a manifest that violates its rules
│   └── ManifestFromFutureError    written by a newer flambeau
├── DigestMismatchError        bytes that do not match the digest in the manifest
├── GoldenMismatchError        golden rows that do not match the signature
├── PipelinePartError          a pipeline whose parts are missing or do not fit
├── CertificateError           a certificate that violates its rules
├── AnnotationError            a description or tags that exceed the limits
├── SampleError                a payload sample that violates its rules
├── CryptographicSignatureError   a version without a valid signature by a trusted key
│   ├── SignatureMissingError      it is unsigned, or its signature was removed
│   ├── ForeignKeyError            signed by a key that is not trusted here
│   └── SignatureMismatchError     changed after signing
├── KeyFileError               a key file that is missing, invalid, or exists already
├── SigningUnavailableError    the libraries that sign and verify are not installed
├── BumpTooSmallError          a semantic version that would hide a change from callers
├── UnsafeOnnxError            an ONNX file that needs other files or custom operators
├── ArchiveError               a torch file that inflates to many times its size
├── ModelArchiveError          a TorchServe archive that is damaged, unsafe or incomplete
├── ServerPropertiesError      a TorchServe configuration that cannot be followed
├── HistoryTooLongError        a time before the moves that a call reads
├── VersionInUseError          a version that may not be deleted: an alias or a pipeline names it
├── RolloutError               a step that a rollout, a shadow or a split cannot take
│   └── InvalidRolloutError        values that contradict each other
├── BreakingVersionError       a version for production that breaks callers of the one before
├── ApprovalError              a move that needs two persons, or a decision about it
│   ├── UnknownRequestError        no such request, or it is no longer kept
│   ├── OwnRequestError            the person who asked approves it
│   ├── OutdatedRequestError       the pointers have moved since
│   ├── ExpiredRequestError        nobody approved it in time
│   ├── DecidedRequestError        it was approved, refused or withdrawn before
│   └── TooManyRequestsError       as many requests as a model may have are open
├── UploadError                an upload of a version
│   ├── UploadRefusedError         its declaration, a file or its manifest breaks a rule
│   ├── UnknownUploadError         it was never begun, is over, or was collected
│   ├── UploadOffsetError          bytes for another place than the end of the file
│   ├── UploadIncompleteError      finished before all bytes have arrived
│   ├── UploadBusyError            another call works on it
│   └── TooManyUploadsError        as many as a store takes at once are open
├── ConflictError              another writer published or moved a pointer first
│   ├── VersionDeletedError        the number belonged to a version that was deleted
│   └── StalePointerError          an alias no longer names the expected version
└── StorageError               the disk or the bucket failed (full, forbidden, unreachable)
    ├── StorageFullError           no space for the bytes; none of them are kept
    └── TooLargeError              a file larger than the read limit for its kind
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flambeau.protocol.signature import Signature


class StoreError(Exception):
    """Root of the tree. The message states the fault, the value and the remedy."""


class StoreNotFoundError(StoreError):
    """The folder of a store that is opened for reading does not exist."""


class BadNameError(StoreError):
    """A model or file name outside the allowed alphabet."""


class ModelNotFoundError(StoreError):
    """The store holds no published version of the model."""


class VersionNotFoundError(StoreError):
    """The store holds the model but not this version of it."""


class DocumentError(StoreError):
    """A JSON file that exceeds its limits, cannot be parsed or violates its schema."""


class ForeignLayoutError(StoreError):
    """A store that holds files of other tools; flambeau does not write to it unless asked."""


class ManifestError(StoreError):
    """A manifest that is not JSON or violates the schema."""


class ManifestFromFutureError(ManifestError):
    """A manifest whose schema is newer than this program reads."""


class DigestMismatchError(StoreError):
    """A file whose bytes do not match the digest in the manifest."""


class GoldenMismatchError(StoreError):
    """A golden file that is not safetensors, or whose tensors do not match the signature."""


class PipelinePartError(StoreError):
    """A pipeline names a model that is missing, is a pipeline itself, or does not fit its step."""


class CertificateError(StoreError):
    """A certificate that is not JSON, violates the schema, or belongs to another version."""


class AnnotationError(StoreError):
    """A description or tags that are too long or too many."""


class SampleError(StoreError):
    """A payload sample that is not JSON, violates the schema, or has values that do not match."""


class CryptographicSignatureError(StoreError):
    """A version without a valid signature by a trusted key, where one is required."""


class SignatureMissingError(CryptographicSignatureError):
    """A version without a signature: published without a key, or removed since."""


class ForeignKeyError(CryptographicSignatureError):
    """A version signed by a key that is not trusted here."""


class SignatureMismatchError(CryptographicSignatureError):
    """A version whose files or signature changed after signing."""


class KeyFileError(StoreError):
    """A key file that is missing, holds no usable key, or would overwrite another."""


class SigningUnavailableError(StoreError):
    """Signing or verifying was requested, and its libraries are not installed."""


class BumpTooSmallError(StoreError):
    """A version that differs from its predecessor by more than the requested bump allows."""


class UnsafeOnnxError(StoreError):
    """A file that is not valid ONNX, reads other files, or needs a custom operator library."""


class ArchiveError(StoreError):
    """A torch file that is not a zip archive, or that inflates to many times its size."""


class ModelArchiveError(StoreError):
    """A TorchServe archive that is damaged, unsafe, too large, or lacks what it names."""


class ServerPropertiesError(StoreError):
    """A configuration of TorchServe with a value that cannot be followed."""


class HistoryTooLongError(StoreError):
    """A time that lies before the newest moves of a model, as many as a call reads."""


class VersionInUseError(StoreError):
    """A version that an alias, a pipeline or a server uses, and that is not deleted therefore."""


class RolloutError(StoreError):
    """A step that a rollout, a shadow or a split cannot take now."""


class InvalidRolloutError(RolloutError):
    """A rollout, a shadow or a split whose values contradict each other, or cannot be."""


class BreakingVersionError(StoreError):
    """A version for production whose signature breaks callers of the version that it follows.

    Attributes:
        live: signature of the version that it follows, as callers see it.
        version: signature of the version, likewise.
    """

    def __init__(self, message: str, live: "Signature", version: "Signature") -> None:
        super().__init__(message)
        self.live = live
        self.version = version


class ApprovalError(StoreError):
    """A move that needs two persons, or a decision about it, that is not possible as asked."""


class UnknownRequestError(ApprovalError):
    """A number that no request has, or one of a request that is no longer kept."""


class OwnRequestError(ApprovalError):
    """An approval by the person who asked for the move."""


class OutdatedRequestError(ApprovalError):
    """A request for pointers that have moved since."""


class ExpiredRequestError(ApprovalError):
    """A request that nobody approved in time."""


class DecidedRequestError(ApprovalError):
    """A request that was approved, refused or withdrawn before."""


class TooManyRequestsError(ApprovalError):
    """As many requests as a model, or a person for it, may have are open."""


class UploadError(StoreError):
    """An upload of a version that cannot go on as asked."""


class UploadRefusedError(UploadError):
    """A declaration, a file or a manifest that breaks a rule of uploads."""


class UnknownUploadError(UploadError):
    """An upload that was never begun by this owner, is over, or was collected."""


class UploadOffsetError(UploadError):
    """Bytes for another place than the end of what has arrived; read the state and go on there."""


class UploadIncompleteError(UploadError):
    """An upload that is finished before all bytes of its files have arrived."""


class UploadBusyError(UploadError):
    """Another call works on the upload, or on the file, at this moment."""


class TooManyUploadsError(UploadError):
    """As many uploads are open as a store takes at once."""


class ConflictError(StoreError):
    """Another writer created the version or the pointer generation first."""


class VersionDeletedError(ConflictError):
    """The number of a version that was deleted; it is never used again."""


class StalePointerError(ConflictError):
    """An alias names a version other than the expected one."""


class StorageError(StoreError):
    """The storage under the store failed; nothing was published."""


class StoreGoneError(StorageError):
    """The folder of an opened store is missing, or an empty folder has taken its place."""


class StorageFullError(StorageError):
    """No space, quota or size limit of files for the bytes; none of them are kept."""


class TooLargeError(StorageError):
    """A file larger than the read limit for its kind; none of it was read."""
