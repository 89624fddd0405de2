"""The signature that callers see, of a model whose server fills in some inputs."""

from typing import Any

from flambeau.protocol.sequence_spec import CONTROLS
from flambeau.protocol.signature import Signature


def for_callers(signature: Signature) -> Signature:
    """Returns the signature of requests: without the tensors that the server fills in.

    Steps of sequences have one row.
    """
    given = signature.sequence
    if given is None:
        return signature
    hidden, kept = given.inputs, given.outputs
    rest: dict[str, Any] = {"states": {}, **dict.fromkeys((*CONTROLS, "id"))}
    return signature.model_copy(
        update={
            "inputs": tuple(spec for spec in signature.inputs if spec.name not in hidden),
            "outputs": tuple(spec for spec in signature.outputs if spec.name not in kept),
            "max_batch_size": 1,
            "sequence": given.model_copy(update=rest),
        }
    )
