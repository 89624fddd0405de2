"""A graph of models as a foreign repository describes it, before it is a pipeline of ours."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftStep:
    """One model of the graph."""

    model: str
    version: int | None = None
    """Its version in the repository; None for the newest."""
    input_map: dict[str, str]
    """Name of a tensor of the graph by input of the model."""
    output_map: dict[str, str]
    """Name of a tensor of the graph by output of the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineDraft:
    """The graph: its tensors are named, and each is an input or the output of one step."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    steps: tuple[DraftStep, ...]
    source: str
    """Description for people."""
    notes: tuple[str, ...] = ()
