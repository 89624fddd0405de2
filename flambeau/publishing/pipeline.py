"""A pipeline in Python: steps that run models of the store, and the tensors between them.

    reader = flambeau.Pipeline(
        steps=[
            flambeau.Step("detect", "detector@^1", {"image": "input.image"}),
            flambeau.Step(
                "read", "recognizer@^2", {"crop": "detect.crops"},
                for_each="detect.crops", where="detect.found",
            ),
        ],
        outputs={"text": "read.text", "boxes": "detect.boxes"},
    )
    flambeau.publish(reader, examples={"image": images}, name="reader")

The rules of graphs are in docs/guides/pipelines.md; our process checks them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flambeau.publishing.python_files import example_arrays
from flambeau.publishing.staging import write_request


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a pipeline.

    Args:
        name: unique name, which other steps use: its outputs are `NAME.OUTPUT`.
        model: the model and its versions: `detector@^1`, `detector@~1.4` or `detector@3`; a name
            alone stands for the versions that are compatible with the one in production now.
        inputs: tensor of each input of the model: `input.NAME` of the request, or `STEP.OUTPUT`; or
            several of steps with `where`, of which each row has one.
        for_each: a tensor [rows, items, ...]: the step runs for each item, all of a request in one
            batch.
        where: BOOL tensor, [rows] or [rows, items], or the number of items of each row, [rows]: the
            step runs for these alone, and its outputs are 0, or empty, for the others.
    """

    name: str
    model: str
    inputs: Mapping[str, str | Sequence[str]]
    for_each: str | None = None
    where: str | None = None

    def document(self) -> dict[str, Any]:
        """Returns the step as in a YAML file."""
        inputs = {n: s if isinstance(s, str) else list(s) for n, s in self.inputs.items()}
        found = {"name": self.name, "model": self.model, "inputs": inputs}
        further = {"for_each": self.for_each, "where": self.where}
        return found | {key: ref for key, ref in further.items() if ref is not None}


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A graph of steps, which `flambeau.publish` makes a version.

    Args:
        steps: the steps, in any order.
        outputs: tensor of each output of the pipeline, written as the inputs of steps are.
    """

    steps: Sequence[Step]
    outputs: Mapping[str, str | Sequence[str]]

    def document(self) -> dict[str, Any]:
        """Returns the graph as in a YAML file."""
        outputs = {n: s if isinstance(s, str) else list(s) for n, s in self.outputs.items()}
        return {"steps": [step.document() for step in self.steps], "outputs": outputs}


def stage_pipeline(
    pipeline: Pipeline, examples: Any, folder: Path, about: Mapping[str, Any]
) -> None:
    """Writes the request to publish a pipeline.

    Args:
        pipeline: the graph.
        examples: inputs by name, [rows, ...]; text and bytes as lists or arrays of them.
        folder: the folder of the request.
        about: fields of the request that do not depend on the pipeline.

    Raises:
        ExampleError: the examples are no arrays by name.
    """
    kept = ("model", "store", "gates", "alias", "metadata", "bump")
    request = {key: about[key] for key in kept} | {"pipeline": pipeline.document()}
    write_request(folder, request, [example_arrays(examples)], [], None)
