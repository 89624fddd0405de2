"""Reads a Dockerfile: text in, stages out. Only the instructions that ours use; others are errors.

Grammar: https://docs.docker.com/reference/dockerfile/. Variables (`${NAME}`) are replaced in every
instruction but RUN, whose shell has them in its environment, as in a build.
"""

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

_VARIABLE = re.compile(r"\$\{(\w+)\}")
IGNORED = frozenset({"EXPOSE", "LABEL"})
"""Instructions that change neither the file system nor the process."""


class DockerfileError(Exception):
    """An instruction that is not known here; the message names it."""


@dataclass(frozen=True)
class Step:
    """Something that changes the file system."""

    kind: str
    """`RUN` or `COPY`."""
    text: str
    """A shell's command; or the words of COPY, variables replaced."""
    environment: dict[str, str]
    """Environment variables at the start of the step."""
    folder: str
    """The working directory."""
    user: str


@dataclass
class Stage:
    """From one FROM to the next, and how a process of it is started."""

    name: str
    base: str
    arguments: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    folder: str = "/"
    user: str = "0:0"
    steps: list[Step] = field(default_factory=list)
    entry_point: list[str] = field(default_factory=list)
    health_check: list[str] = field(default_factory=list)


def read_dockerfile(path: Path, build_arguments: Mapping[str, str]) -> list[Stage]:
    """The stages of a Dockerfile, the image's own last.

    Args:
        path: of the file.
        build_arguments: as `--build-arg` gives them.

    Raises:
        DockerfileError: it has an instruction, or a form of one, that is not known here.
    """
    everywhere: dict[str, str] = {}
    stages: list[Stage] = []
    for instruction, text in instructions(path.read_text()):
        if instruction == "FROM":
            words = _replaced(text, everywhere).split()
            stages.append(Stage(name=words[2] if len(words) > 1 else "", base=words[0]))
        elif instruction == "ARG":
            name, _, default = text.partition("=")
            known = stages[-1].arguments if stages else everywhere
            known[name] = build_arguments.get(name, default)
        elif instruction not in IGNORED:
            _apply(stages[-1], instruction, text)
    return stages


def instructions(text: str) -> Iterator[tuple[str, str]]:
    """Each instruction, in capitals, with what follows it on one line."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        if line.strip():
            word, _, rest = line.strip().partition(" ")
            yield word.upper(), rest.strip()


def _apply(stage: Stage, instruction: str, text: str) -> None:
    variables = stage.arguments | stage.environment
    if instruction in ("RUN", "COPY"):
        text = text if instruction == "RUN" else _replaced(text, variables)
        stage.steps.append(Step(instruction, text, variables, stage.folder, stage.user))
    elif instruction == "ENV":
        pairs = (word.partition("=") for word in shlex.split(_replaced(text, variables)))
        stage.environment |= {name: value for name, _, value in pairs}
    elif instruction == "WORKDIR":
        stage.folder = _replaced(text, variables)
    elif instruction == "USER":
        stage.user = text
    elif instruction == "ENTRYPOINT":
        stage.entry_point = json.loads(text)
    elif instruction == "HEALTHCHECK":
        stage.health_check = json.loads(text.partition(" CMD ")[2])
    elif instruction != "CMD":  # who starts an image here says how
        raise DockerfileError(f"{instruction} is not known here; add it to {__name__}")


def _replaced(text: str, variables: Mapping[str, str]) -> str:
    return _VARIABLE.sub(lambda found: variables[found[1]], text)
