"""Limits of the difference between an artifact's and the checkpoint's outputs; see `parity`."""

from pydantic import Field

from flambeau.protocol.strict import StrictModel


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
    """Smallest `Parity.cosine` of any vector of `embeddings`."""
