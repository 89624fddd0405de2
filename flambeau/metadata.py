"""A model's metadata from the server, and the signature that follows from it."""

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import ValidationError

from flambeau.errors import ServerError
from flambeau.protocol.messages import inference as pb
from flambeau.protocol.signature import BEYOND_TENSORS, Signature
from flambeau.protocol.strict import explain


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorMetadata:
    """One input or output: its datatype as in the protocol, its shape with -1 for "varies"."""

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelMetadata:
    """The response of ModelMetadata (Open Inference Protocol v2), field by field."""

    name: str
    versions: tuple[str, ...]
    platform: str
    inputs: tuple[TensorMetadata, ...]
    outputs: tuple[TensorMetadata, ...]
    properties: Mapping[str, str]

    def signature(self) -> Signature:
        """Returns the signature that requests to this model must match.

        The property `max_batch_size` limits the rows of a batch; without it there is no limit.
        `dynamic`, `limits`, `labels` and `padding` are JSON, for the parts of a signature beside
        its tensors; `tensors` has the batch axes and optional inputs of those that differ from the
        usual.

        Raises:
            ServerError: the model has no batch dimension, or a datatype unknown to this client; it
                can still be called by `Client.infer`, which checks nothing.
        """
        limit = self.properties.get("max_batch_size")
        try:
            beyond = {n: json.loads(t) for n, t in self.properties.items() if n in BEYOND_TENSORS}
            fields = json.loads(self.properties.get("tensors", "{}"))
            signature = Signature.model_validate(
                {
                    "inputs": _specs(self.inputs, fields, "inputs"),
                    "outputs": _specs(self.outputs, fields, "outputs"),
                    "max_batch_size": 1 if limit is None else limit,
                    **beyond,
                }
            )
        except ValueError as error:
            why = explain(error, Signature) if isinstance(error, ValidationError) else str(error)
            raise ServerError(
                f"the metadata of model '{self.name}' gives no signature: {why}; use Client.infer, "
                "which does not check inputs"
            ) from error
        if limit is None:
            # Copying skips validation: the limit of 65,536 rows applies only to manifests.
            return signature.model_copy(update={"max_batch_size": sys.maxsize})
        return signature


def _specs(tensors: tuple[TensorMetadata, ...], fields: Any, side: str) -> list[dict[str, Any]]:
    """Returns the specs of tensors, with the fields that the property `tensors` has for them.

    Raises:
        ValueError: the property has another form.
    """
    try:
        of_side = dict(fields.get(side, {}))
        return [asdict(tensor) | dict(of_side.get(tensor.name, {})) for tensor in tensors]
    except (AttributeError, TypeError) as error:
        raise ValueError(f"the property 'tensors' has another form: {error}") from error


def from_message(reply: pb.ModelMetadataResponse) -> ModelMetadata:
    """Converts a server's response."""
    return ModelMetadata(
        name=reply.name,
        versions=tuple(reply.versions),
        platform=reply.platform,
        inputs=_tensors(reply.inputs),
        outputs=_tensors(reply.outputs),
        properties=dict(reply.properties),
    )


def _tensors(
    tensors: "Iterable[pb.ModelMetadataResponse.TensorMetadata]",
) -> tuple[TensorMetadata, ...]:
    return tuple(
        TensorMetadata(name=each.name, datatype=each.datatype, shape=tuple(each.shape))
        for each in tensors
    )
