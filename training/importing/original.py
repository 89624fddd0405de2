"""A model as it was brought: the reference that derived artifacts are compared with."""

from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import ValidationError

from flambeau.protocol.row_steps import first_steps
from flambeau.protocol.sequence_spec import Sequences
from flambeau.protocol.signature import Signature
from flambeau.protocol.strict import explain
from flambeau.protocol.tensors import Array
from model_store.artifact_kinds import ArtifactKind
from model_store.manifest import Precision
from training.errors import RecipeError


@dataclass(frozen=True, slots=True, kw_only=True)
class Original:
    """The files of a model in one format, and what they tell about it."""

    kind: ArtifactKind
    precision: Precision
    file: Path
    """Path of its file in a staging folder of ours."""
    weights_file: Path | None = None
    """Path of the second file of kinds that have two: OpenVINO's `.bin`."""
    signature: Signature
    """Inputs and outputs as the file states them."""
    examples: dict[str, Array] | None = None
    """Inputs by name, [rows, ...]; None where the caller must give them."""
    made_up: bool = False
    """True if the examples were generated, and are no real rows."""
    source: str
    """Description for people and the lineage: `net.onnx`, `MLflow model runs/3/model (onnx)`."""
    name: str = ""
    """Name of the model in its repository; empty where the source gives none."""
    side_files: tuple[Path, ...] = ()
    """Further files that travel with the version, such as a tokenizer, in the staging folder."""
    notes: tuple[str, ...] = ()
    """Facts that the user is told: what was made up, changed or not understood."""

    def with_sequences(self, sequence: Sequences | None) -> "Original":
        """Returns the model as one with state.

        Made-up rows of a model that keeps its state itself become first steps: golden rows must not
        depend on each other.

        Raises:
            RecipeError: a tensor does not fit the declaration.
        """
        if sequence is None:
            return self
        fields = self.signature.model_dump() | {"sequence": sequence.model_dump()}
        try:
            signature = Signature.model_validate(fields)
        except ValidationError as error:
            raise RecipeError(f"sequence: {explain(error, Signature)}") from error
        examples = self.examples
        if self.made_up and examples is not None and not sequence.states:
            examples = first_steps(examples, sequence)
        return replace(self, signature=signature, examples=examples)
