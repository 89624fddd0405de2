"""The limits that an artifact's outputs are held to; `parity` measures them."""

from pydantic import Field

from model_store.strict import StrictModel


class Tolerance(StrictModel):
    """How far an artifact may lie from the checkpoint and still be served.

    Widen `max_abs_difference` for quantized kinds, whose outputs move while the answer does not;
    then `min_agreement` is the limit that means something.
    """

    max_abs_difference: float
    """Largest absolute difference of any output element, in the output's own unit; of FP16, beyond
    one rounding step."""
    min_agreement: float
    """Share of rows, 0 to 1, whose largest output is in the same place."""
    max_probability_shift: float = 1.0
    """Largest change of the probability of any class: outputs [rows, classes] through softmax."""
    # Left out where there is none: what was published before reads as it always did.
    embeddings: tuple[str, ...] = Field(default=(), exclude_if=lambda names: not names)
    """Outputs whose vectors are held to `min_cosine`, and to none of the three above."""
    min_cosine: float | None = Field(default=None, exclude_if=lambda cosine: cosine is None)
    """Least likeness of any vector of `embeddings`; see `Parity.cosine`."""
