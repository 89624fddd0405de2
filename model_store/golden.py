"""Golden rows: inputs with the checkpoint's own outputs, and the format of their file.

Pure. The file is safetensors and holds tensors `input.NAME` and `output.NAME`, each [rows, ...] in
the row form of `flambeau.protocol.row_form`: the batch is first, and a tensor without one has a
value for each row. Safetensors has no strings: a BYTES input is stored as `bytes.NAME`, its
length-prefixed elements (in the encoding of `flambeau.protocol.tensors`) as 1-D UINT8, and
`shape.NAME`, its shape in INT64; a BYTES output as `output-bytes.NAME` and `output-shape.NAME`.

Rule: rows that do not match the version's signature verify nothing, so such a file is refused when
it is published and whenever it is read.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from flambeau.protocol.signature import Signature, SignatureError, TensorSpec
from flambeau.protocol.strict import nearest_name
from flambeau.protocol.tensors import (
    Array,
    TensorError,
    datatype_of,
    decode_bytes_elements,
    element_count,
    encode_bytes_elements,
)
from model_store.arrays.tensor_file import encode_tensors
from model_store.document import DocumentLimits, parse_document
from model_store.errors import DocumentError, GoldenMismatchError
from model_store.manifest import Draft, Manifest
from model_store.version_reader import VersionReader

MAX_GOLDEN_BYTES = 2**29
"""64 rows of 8 MiB, the size of two FP32 images of 1024 x 1024 pixels."""

_HEADER = DocumentLimits(2**20, 25_000)
_LENGTH_BYTES = 8
"""Size of the header's length, a little-endian number: safetensors' format."""
_INPUT, _OUTPUT = "input.", "output."
_BYTES, _SHAPE = "bytes.", "shape."
_OUTPUT_BYTES, _OUTPUT_SHAPE = "output-bytes.", "output-shape."


@dataclass(frozen=True, slots=True)
class GoldenRows:
    """Inputs and outputs of the checkpoint; row i of the inputs produced row i of the outputs."""

    inputs: Mapping[str, Array]
    """Arrays by name, each [rows, ...]."""
    outputs: Mapping[str, Array]
    """Arrays by name, each [rows, ...]."""

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(next(iter(self.inputs.values())))

    def to_bytes(self) -> bytes:
        """Returns the bytes of the golden file."""
        return encode_tensors(self.to_tensors())

    def to_tensors(self) -> dict[str, Array]:
        """Returns the tensors of the golden file."""
        tensors: dict[str, Array] = {}
        for arrays, plain, octets, shape in (
            (self.inputs, _INPUT, _BYTES, _SHAPE),
            (self.outputs, _OUTPUT, _OUTPUT_BYTES, _OUTPUT_SHAPE),
        ):
            for name, array in arrays.items():
                if datatype_of(array) == "BYTES":
                    tensors[octets + name] = np.frombuffer(encode_bytes_elements(array), np.uint8)
                    tensors[shape + name] = np.array(array.shape, np.int64)
                else:
                    tensors[plain + name] = array
        return tensors


def read_golden(store: VersionReader, manifest: Manifest) -> GoldenRows:
    """Reads the golden rows of a version.

    Raises:
        GoldenMismatchError: its file is not safetensors, or does not match its signature.
        StoreError: its file is too large, does not match the manifest, or is out of reach.
    """
    return parse_golden(store.read_file(manifest, manifest.golden.file, MAX_GOLDEN_BYTES), manifest)


def parse_golden(data: bytes, version: Draft) -> GoldenRows:
    """Parses the rows of a version's golden file.

    Args:
        data: the bytes of the file, digest already checked.
        version: the draft or manifest that names the file.

    Raises:
        GoldenMismatchError: it is not a safetensors file, or does not match the signature.
    """
    where = f"the golden file '{version.golden.file.file}' of '{version.model}'"
    tensors = _tensors(data, where)
    try:
        return _checked_rows(tensors, version)
    except (SignatureError, TensorError, ArithmeticError, ValueError) as error:
        raise GoldenMismatchError(
            f"{where} does not match the signature, so it verifies nothing: {error}; publish the "
            "version again with golden rows of its own inputs and outputs"
        ) from error


def _tensors(data: bytes, where: str) -> dict[str, Array]:
    """Reads the tensors of a safetensors file after checking the size of its header.

    Raises:
        GoldenMismatchError: it is not a safetensors file, or too large.
    """
    from safetensors.numpy import load

    try:
        if len(data) > MAX_GOLDEN_BYTES:
            raise DocumentError(f"it has {len(data):,} bytes, and at most {MAX_GOLDEN_BYTES:,}")
        length = int.from_bytes(data[:_LENGTH_BYTES], "little")
        header = data[_LENGTH_BYTES : _LENGTH_BYTES + min(length, _HEADER.max_bytes + 1)]
        parse_document(header, "its header", _HEADER)
        return load(data)
    except Exception as error:  # the libraries raise many types, above all for shapes
        raise GoldenMismatchError(
            f"{where} cannot be read as safetensors: {error}; publish the version again"
        ) from error


def _checked_rows(tensors: Mapping[str, Array], version: Draft) -> GoldenRows:
    """Sorts the tensors into inputs and outputs, and checks them.

    Raises:
        SignatureError, TensorError: they do not match the signature.
    """
    inputs, outputs = (
        {n.removeprefix(prefix): a for n, a in tensors.items() if n.startswith(prefix)}
        for prefix in (_INPUT, _OUTPUT)
    )
    inputs |= _texts(tensors, _BYTES, _SHAPE)
    outputs |= _texts(tensors, _OUTPUT_BYTES, _OUTPUT_SHAPE)
    known = (_INPUT, _OUTPUT, _BYTES, _SHAPE, _OUTPUT_BYTES, _OUTPUT_SHAPE)
    if other := [n for n in tensors if not n.startswith(known)]:
        raise SignatureError(f"tensor '{other[0]}' is neither input.NAME nor output.NAME")
    signature = version.signature.in_rows()
    _check_tensors("input", inputs, signature.inputs)
    _check_tensors("output", outputs, signature.outputs)
    _check_rows({_INPUT + n: a for n, a in inputs.items()}, version.golden.rows)
    _check_rows({_OUTPUT + n: a for n, a in outputs.items()}, version.golden.rows)
    # Sizes and lengths are checked as for one row, as golden rows may be more than one batch.
    datatypes = {spec.name: spec.datatype for spec in signature.inputs}
    given = {name: (datatypes[name], (1, *array.shape[1:])) for name, array in inputs.items()}
    signature.check_inputs(given)
    _check_output_lengths(signature, inputs, outputs)
    return GoldenRows(inputs, outputs)


def _texts(tensors: Mapping[str, Array], prefix: str, of_shape: str) -> dict[str, Array]:
    """Decodes the BYTES tensors, each to an array of `bytes`.

    Raises:
        SignatureError, TensorError: one has no shape, or its elements do not match its shape.
    """
    found: dict[str, Array] = {}
    for key, octets in tensors.items():
        if key.startswith(prefix):
            name = key.removeprefix(prefix)
            if of_shape + name not in tensors:
                raise SignatureError(f"it lacks '{of_shape}{name}', the shape of '{key}'")
            sizes = tensors[of_shape + name]
            if sizes.ndim != 1 or sizes.dtype.kind not in "iu":
                raise SignatureError(f"'{of_shape}{name}' is no shape; write a list of integers")
            shape = [int(size) for size in sizes]
            elements = decode_bytes_elements(octets.tobytes(), element_count(shape))
            found[name] = elements.reshape(shape)
    return found


def _check_tensors(what: str, found: Mapping[str, Array], specs: Iterable[TensorSpec]) -> None:
    wanted = {spec.name: spec for spec in specs}
    for name in found:
        if name not in wanted:
            raise SignatureError(f"it holds an unknown {what} '{name}'{nearest_name(name, wanted)}")
    for name, spec in wanted.items():
        if name not in found:
            if spec.optional:
                continue
            raise SignatureError(f"it lacks {what} '{name}'")
        datatype = datatype_of(found[name])
        # NumPy has no bfloat16: its bits are stored as UINT16.
        if datatype != ("UINT16" if spec.datatype == "BF16" else spec.datatype):
            raise SignatureError(
                f"{what} '{name}' has datatype {datatype}; the signature has {spec.datatype}"
            )
        if not spec.fits(found[name].shape):
            raise SignatureError(
                f"{what} '{name}' has shape {list(found[name].shape)}; the signature has "
                f"{list(spec.shape)}"
            )


def _check_rows(tensors: Mapping[str, Array], rows: int) -> None:
    for name, array in tensors.items():
        if len(array) != rows:
            raise SignatureError(f"{name} has {len(array)} rows; the manifest says {rows}")


def _check_output_lengths(
    signature: Signature, inputs: Mapping[str, Array], outputs: Mapping[str, Array]
) -> None:
    """Checks that outputs with one value per position have the inputs' length."""
    length = signature.length_of({name: array.shape for name, array in inputs.items()})
    for name, axis in signature.padding.outputs.items() if signature.padding else ():
        if outputs[name].shape[axis] != length:
            raise SignatureError(
                f"output '{name}' has {outputs[name].shape[axis]} positions along axis {axis}, and "
                f"the inputs have {length}"
            )
