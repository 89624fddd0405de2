"""A pipeline in Python: steps that run models of the store or code, and the tensors between them.

    def crops_of(inputs):
        return {"crop": cut(inputs["image"], inputs["boxes"])}

    reader = flambeau.Pipeline(
        steps=[
            flambeau.Step("detect", "detector@^1", {"image": "input.image"}),
            flambeau.Step("cut", crops_of, {"image": "input.image", "boxes": "detect.boxes"}),
            flambeau.Step(
                "read", "recognizer@^2", {"crop": "cut.crop"},
                for_each="cut.crop", where="detect.found",
            ),
        ],
        outputs={"text": "read.text", "boxes": "detect.boxes"},
    )
    flambeau.publish(reader, examples={"image": images}, name="reader")

The rules of graphs are in docs/guides/pipelines.md; our process checks them.
"""

import ast
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType
from typing import Any

from flambeau.publishing.class_source import class_source
from flambeau.publishing.errors import ExampleError, PublishError
from flambeau.publishing.python_files import (
    copy_files,
    example_arrays,
    kept_args,
)
from flambeau.publishing.staged_files import FILES
from flambeau.publishing.staging import write_request


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a pipeline.

    Args:
        name: unique name, which other steps use: its outputs are `NAME.OUTPUT`.
        model: the model and its versions: `detector@^1`, `detector@~1.4` or `detector@3`; a name
            alone stands for the versions that are compatible with the one in production now. Or
            code of the pipeline's own: a class with a method `infer` or `infer_one`, or a function
            that takes the inputs by name, [rows, ...], and returns the outputs so, as `infer` does.
        inputs: tensor of each input of the model: `input.NAME` of the request, or `STEP.OUTPUT`; or
            several of steps with `where`, of which each row has one.
        for_each: a tensor [rows, items, ...]: the step runs for each item, all of a request in one
            batch.
        where: BOOL tensor, [rows] or [rows, items], or the number of items of each row, [rows]: the
            step runs for these alone, and its outputs are 0, or empty, for the others.
        args: of a class: its arguments, values of JSON.
        files: of a class: files that the version keeps for it.
    """

    name: str
    model: str | type | Callable[..., Any]
    inputs: Mapping[str, str | Sequence[str]]
    for_each: str | None = None
    where: str | None = None
    args: Mapping[str, Any] = field(default_factory=dict)
    files: Sequence[str | os.PathLike[str]] = ()

    def __post_init__(self) -> None:
        is_class = isinstance(self.model, type)
        is_model = is_class and any(hasattr(self.model, name) for name in ("infer", "infer_one"))
        if not (is_model or isinstance(self.model, str | FunctionType)):
            what = "the class " if is_class else "a "
            cls = self.model if isinstance(self.model, type) else type(self.model)
            raise ExampleError(
                f"step '{self.name}': its model is {what}{cls.__name__}; give a model of the store "
                "(publish a network first), a class with a method infer or infer_one, or a function"
            )
        if isinstance(self.model, FunctionType):
            taken = list(inspect.signature(self.model).parameters.values())
            needed = [
                one.name
                for one in taken
                if one.default is one.empty and one.kind < one.VAR_POSITIONAL
            ]
            if len(needed) > 1 or not taken:
                raise ExampleError(
                    f"step '{self.name}': {self.model.__name__} takes {needed}; a function takes "
                    "one argument, all inputs by name: def clean(inputs): ... inputs['image']"
                )
        if not is_class and (self.args or self.files):
            raise PublishError(f"step '{self.name}': args and files are for a class")

    def document(self, folder: Path) -> dict[str, Any]:
        """Returns the step as in a YAML file.

        Args:
            folder: folder of the file, in which code is written.

        Raises:
            CaptureError: the source of code, an argument or a file cannot be kept.
        """
        inputs = {n: s if isinstance(s, str) else list(s) for n, s in self.inputs.items()}
        what = {"model": self.model} if isinstance(self.model, str) else self._staged(folder)
        found = {"name": self.name, **what, "inputs": inputs}
        further = {"for_each": self.for_each, "where": self.where}
        return found | {key: ref for key, ref in further.items() if ref is not None}

    def _staged(self, folder: Path) -> dict[str, Any]:
        """Writes the code of the step, and copies its files."""
        own = folder / f"step-{len(list(folder.glob('step-*')))}"
        own.mkdir()
        assert isinstance(self.model, type | FunctionType)
        source, class_name = class_source(self.model), self.model.__name__
        if isinstance(self.model, FunctionType):
            function = class_name
            nodes = ast.walk(ast.parse(source))
            if any(isinstance(node, ast.Name) and node.id == function for node in nodes):
                class_name += "_step"  # it calls itself by its name
            source += f"\n\nclass {class_name}:\n    infer = staticmethod({function})\n"
        file = f"{class_name}.py"
        (own / file).write_text(source, encoding="utf-8")
        files = copy_files(self.files, own / FILES)
        return {
            "python": f"{own.name}/{file}:{class_name}",
            "args": kept_args(self.args),
            "files": [f"{own.name}/{FILES}/{name}" for name in files],
        }


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A graph of steps, which `flambeau.publish` makes a version.

    Args:
        steps: the steps, in any order.
        outputs: tensor of each output of the pipeline, written as the inputs of steps are.
    """

    steps: Sequence[Step]
    outputs: Mapping[str, str | Sequence[str]]

    def document(self, folder: Path) -> dict[str, Any]:
        """Returns the graph as in a YAML file in a folder; see `Step.document`."""
        outputs = {n: s if isinstance(s, str) else list(s) for n, s in self.outputs.items()}
        return {"steps": [step.document(folder) for step in self.steps], "outputs": outputs}


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
        CaptureError: code of a step cannot be kept.
    """
    kept = ("model", "store", "gates", "alias", "metadata", "bump")
    request = {key: about[key] for key in kept} | {"pipeline": pipeline.document(folder)}
    write_request(folder, request, [example_arrays(examples)], [], None)
