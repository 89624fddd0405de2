"""The configuration of one model in a Triton repository, and the files that it names.

Rules: names and shapes count only if they are understood; every other key is listed, so that
nothing that Triton would do is lost silently.

Source: https://docs.nvidia.com/deeplearning/triton-inference-server/ (model configuration, model
repository).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from flambeau.protocol.sequence_spec import Sequences
from training.errors import SourceError
from training.importing.sources.foreign_files import beside, read_text
from training.importing.sources.read_tensor import ReadTensor
from training.importing.sources.triton.config_tensor import config_tensor, in_order
from training.importing.sources.triton.protobuf_text import (
    Message,
    TextFormatError,
    parse_text_format,
)
from training.importing.sources.triton.sequence_batching import FIELD, sequence_batching

CONFIG = "config.pbtxt"
MAX_LABELS = 100_000

_RUNTIMES = {
    "onnxruntime_onnx": "onnx", "onnxruntime": "onnx", "pytorch_libtorch": "torchscript",
    "pytorch": "torchscript", "torch_aoti": "aoti", "openvino": "openvino", "ensemble": "ensemble",
}  # fmt: skip
"""Kinds by Triton's names of platforms and backends."""
DEFAULT_FILES = {
    "onnx": "model.onnx", "torchscript": "model.pt", "aoti": "model.pt2", "openvino": "model.xml",
}  # fmt: skip
_READ = frozenset({
    "name", "platform", "backend", "runtime", "max_batch_size", "input", "output",
    "version_policy", "default_model_filename", "ensemble_scheduling", FIELD,
})  # fmt: skip
_OF_SERVER = ("dynamic_batching", "instance_group", "model_warmup")
"""Keys whose work a server here does by its own settings."""
_READ_OF_TENSOR = frozenset({
    "name", "data_type", "dims", "reshape", "optional", "label_filename", "format",
})  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonModel:
    """One model of a repository."""

    name: str
    kind: str
    """Kind of its file, `ensemble`, or `` for a platform that is not read."""
    platform: str
    """Platform or backend as the configuration states it."""
    folder: Path
    config: Message
    max_batch_size: int
    inputs: tuple[ReadTensor, ...] = ()
    """Those of requests, states and controls."""
    outputs: tuple[ReadTensor, ...] = ()
    sequences: Sequences | None = None
    """Sequences of a model with state."""
    labels: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Names of the classes by output."""
    notes: tuple[str, ...] = ()


def is_model_folder(folder: Path) -> bool:
    """Returns True for a folder with a configuration, or with versions of a model."""
    return (folder / CONFIG).is_file() or any(
        (version / file).exists()
        for version in _versions(folder)
        for file in DEFAULT_FILES.values()
    )


def read_model(folder: Path) -> TritonModel:
    """Reads the configuration of a model.

    Raises:
        SourceError: the configuration is not valid.
    """
    where = str(folder / CONFIG)
    config = Message()
    if (folder / CONFIG).exists():
        try:
            config = parse_text_format(read_text(beside(folder, CONFIG, str(folder))))
        except TextFormatError as error:
            raise SourceError(f"{where} is not protobuf's text format: {error}") from error
    platform = config.text("platform") or config.text("backend") or _guessed(folder)
    kind = _RUNTIMES.get(platform, "")
    if config.text("runtime") or config.text("platform") == "torch_aoti":
        kind = _RUNTIMES.get(config.text("platform"), kind)
    most = (config.numbers("max_batch_size") or [0])[-1]
    if not 0 <= most <= 65_536:
        raise SourceError(f"{where}: max_batch_size is {most}; write 0 to 65536")
    inputs = tuple(config_tensor(where, "input", one, most) for one in config.messages("input"))
    outputs = tuple(config_tensor(where, "output", one, most) for one in config.messages("output"))
    labels, notes = _labels(folder, config, outputs), _notes(folder.name, config)
    sequences: Sequences | None = None
    if kind and (batching := config.messages(FIELD)):
        found = sequence_batching(where, folder, batching[-1], most)
        sequences, notes = found.declaration, notes + found.notes
        inputs, outputs = _with(inputs, found.inputs), _with(outputs, found.outputs)
    return TritonModel(
        name=config.text("name") or folder.name,
        kind=kind,
        platform=platform or "no platform",
        folder=folder,
        config=config,
        max_batch_size=most,
        inputs=in_order(inputs),
        outputs=in_order(outputs),
        sequences=sequences,
        labels=labels,
        notes=notes,
    )


def _with(
    tensors: tuple[ReadTensor, ...], further: tuple[ReadTensor, ...]
) -> tuple[ReadTensor, ...]:
    """Returns the tensors and further ones; those of a sequence may be listed among the others."""
    names = {tensor.name for tensor in tensors}
    return (*tensors, *(tensor for tensor in further if tensor.name not in names))


def model_file(model: TritonModel) -> Path:
    """Returns the path of the file of the version that Triton would serve.

    Raises:
        SourceError: there is no such version or file.
    """
    version = _chosen(model)
    name = model.config.text("default_model_filename") or DEFAULT_FILES[model.kind]
    folder = model.folder / version
    why = f"{model.folder / CONFIG}: default_model_filename"
    if (folder / name).is_dir():  # an ONNX model with external data is a folder of that name
        return beside(folder / name, DEFAULT_FILES[model.kind], why)
    return beside(folder, name, why)


def _chosen(model: TritonModel) -> str:
    """Returns the folder of the highest version that the policy serves."""
    found = {int(version.name): version.name for version in _versions(model.folder)}
    policies = model.config.messages("version_policy")
    specific = [n for p in policies for s in p.messages("specific") for n in s.numbers("versions")]
    served = [n for n in found if n in specific] if specific else list(found)
    if not served:
        wanted = f"one of the versions {specific}" if specific else "no folder of a version"
        raise SourceError(
            f"{model.folder} has {'not ' if specific else ''}{wanted}; create a folder such as 1 "
            "with the file in it"
        )
    return found[max(served)]


def _versions(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    found = [p for p in folder.iterdir() if re.fullmatch(r"[1-9]\d{0,17}", p.name) and p.is_dir()]
    return sorted(found)


def _guessed(folder: Path) -> str:
    """Returns the platform of a model without one, by its files, as Triton does."""
    for version in _versions(folder):
        for kind, file in DEFAULT_FILES.items():
            if (version / file).exists() and kind != "aoti":
                return next(name for name, known in _RUNTIMES.items() if known == kind)
    return ""


def _labels(
    folder: Path, config: Message, outputs: Sequence[ReadTensor]
) -> dict[str, tuple[str, ...]]:
    found = {}
    for message, tensor in zip(config.messages("output"), outputs, strict=True):
        if not (name := message.text("label_filename")):
            continue
        why = f"{folder / CONFIG}: label_filename"
        labels = tuple(read_text(beside(folder, name, why)).splitlines())
        if len(labels) > MAX_LABELS:
            raise SourceError(f"{folder / name} has {len(labels):,} lines; give {MAX_LABELS:,}")
        if tensor.dims and tensor.dims[-1] == len(labels):
            found[tensor.name] = labels
    return found


def _notes(name: str, config: Message) -> tuple[str, ...]:
    unknown = [key for key in config.fields if key not in _READ and key not in _OF_SERVER]
    for what in ("input", "output"):
        for message in config.messages(what):
            unknown += [f"{what}.{key}" for key in message.fields if key not in _READ_OF_TENSOR]
    policies = config.messages("version_policy")
    unknown += [f"version_policy.{k}" for p in policies for k in p.fields if k != "specific"]
    notes = []
    if unknown:
        listed = ", ".join(dict.fromkeys(unknown))
        notes.append(f"{name}: not understood, and left out: {listed}")
    if own := [key for key in _OF_SERVER if key in config.fields]:
        notes.append(f"{name}: {', '.join(own)} are settings of the server here, not of a version")
    return tuple(notes)
