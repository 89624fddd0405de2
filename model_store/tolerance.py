"""Limits of the difference between an artifact's and the checkpoint's outputs; see `parity`."""

from collections.abc import Mapping

from pydantic import Field

from flambeau.protocol.strict import StrictModel
from model_store.gates import Gate

NO_GATES: Mapping[str, Gate] = {}


class Tolerance(StrictModel):
    """Largest differences from the checkpoint with which an artifact is still served.

    Widen `max_abs_difference` for quantized kinds, whose outputs change while the top class does
    not; `min_agreement` is then the relevant limit.
    """

    max_abs_difference: float
    """Largest absolute difference of any output element, in the output's own unit; for FP16, minus
    one rounding step."""
    min_agreement: float
    """Smallest share of rows, 0 to 1, with the same top class."""
    max_probability_shift: float = 1.0
    """Largest change of any class probability: outputs [rows, classes] after softmax."""
    # Omitted from JSON if empty, so that older manifests serialize as before.
    embeddings: tuple[str, ...] = Field(default=(), exclude_if=lambda names: not names)
    """Outputs whose vectors are compared by `min_cosine`, and by none of the three limits above."""
    min_cosine: float | None = Field(default=None, exclude_if=lambda cosine: cosine is None)
    """Smallest `Gate.cosine` of any vector of `embeddings`."""
    gates: dict[str, Gate] = Field(default={}, exclude_if=lambda gates: not gates)
    """Limits of single outputs, which none of the limits above apply to."""

    @property
    def single_gates(self) -> Mapping[str, Gate]:
        """The gates of all outputs that are judged by themselves, embeddings included."""
        cosine = 0.0 if self.min_cosine is None else min(max(self.min_cosine, 0.0), 1.0)
        return {name: Gate(cosine=cosine) for name in self.embeddings} | self.gates
