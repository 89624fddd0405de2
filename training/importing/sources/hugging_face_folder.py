"""Reads a model folder of Hugging Face: config.json, safetensors, and the files of a tokenizer.

The network is made by the user's `transformers`, without network access, in a separate process, and
exported with a variable batch and length. Pooling and normalisation of sentence-transformers become
part of it. Files of the tokenizer become side files.

Rules: weights are safetensors, or a pickle if the user allows it; a folder whose model is code of
its own (`auto_map`) is refused; weights beyond the memory limit are refused before they are read.
"""

import dataclasses
import importlib.util
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from flambeau.protocol.signature import Padding, Signature, SizeLimit
from flambeau.protocol.tensors import Array
from flambeau.publishing.network_outputs import OutputsInOrder
from model_store.document import LARGE, parse_document
from model_store.errors import DocumentError
from model_store.host.install_advice import package_command
from model_store.host.memory_limit import GIB
from training.errors import SourceError
from training.importing.original import Original
from training.importing.sources.apart import call_apart
from training.importing.sources.examination import Examined, examine
from training.importing.sources.foreign_files import (
    beside,
    file_size,
    files_below,
    read_text,
    staged_copy,
)
from training.importing.sources.made_examples import ROWS
from training.importing.sources.read_tensor import BATCH, ReadTensor
from training.importing.sources.source_options import SourceOptions
from training.importing.sources.torch_programs.program_safety import WHAT_CODE_CAN_DO
from training.importing.sources.torch_programs.torch_examination import (
    tensors_of_examples,
    torch_run,
)
from training.importing.sources.torch_programs.torch_export import export_module
from training.process.quiet import quiet
from training.process.root_cause import root_cause

CONFIG, INDEX, WEIGHTS = "config.json", "model.safetensors.index.json", "model.safetensors"
FILE = "model.pt2"
TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt",
    "vocab.json", "merges.txt", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model",
    "preprocessor_config.json",
)  # fmt: skip
"""Files that turn texts or images into the model's inputs."""
SHOWN_LENGTH = 16
"""Length of made-up texts, in tokens."""
LENGTH = "length"
BUCKETS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
"""Lengths to which texts are padded, up to the model's own limit."""
_OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}


def read(path: Path, options: SourceOptions, staging: Path) -> Original:
    """Reads a folder.

    Args:
        path: the folder, on disk.
        options: examples, largest batch and limits.
        staging: folder of ours for the program and the tokenizer.

    Raises:
        SourceError: the folder is incomplete, unsafe or too large, `transformers` is not installed,
            or the network cannot be exported.
    """
    config = _json(path / CONFIG)
    _check_weights(path, options)
    if config.get("auto_map"):
        raise SourceError(
            f"{path} has a model that is code of its own (auto_map in {CONFIG}), which is not run; "
            "publish it from Python with flambeau.publish"
        )
    if importlib.util.find_spec("transformers") is None:
        raise SourceError(
            f"{path} is made into a network by transformers, which is not installed; install it "
            f"with {package_command('transformers')}"
        )
    staging.mkdir(parents=True, exist_ok=True)
    examined: Examined = call_apart(
        _export, path.absolute(), staging / FILE, config, options,
        where=str(path), limits=options.limits,
    )  # fmt: skip
    side_files = tuple(
        staged_copy(_inside(path, name), staging, name)
        for name in TOKENIZER_FILES
        if (path / name).exists()
    )
    notes: tuple[str, ...] = ()
    if "vocab_size" in config and not any(f.name.startswith(_TOKENIZERS) for f in side_files):
        notes = (f"{path.name} has no tokenizer: requests must carry tokens",)
    source = f"Hugging Face folder {path.name}"
    original = examined.original("pt2", staging / FILE, source, notes=notes)
    return dataclasses.replace(original, side_files=side_files)


_TOKENIZERS = ("tokenizer.json", "vocab", "tokenizer.model", "spiece", "sentencepiece")


def _inside(folder: Path, name: str) -> Path:
    """Returns the path of a file of the folder; the links of Hugging Face's cache are allowed."""
    blobs = folder.absolute().parent.parent / "blobs"
    return beside(folder, name, str(folder), (blobs,) if blobs.is_dir() else ())


def _json(path: Path) -> dict[str, Any]:
    try:
        document = parse_document(read_text(path).encode(), str(path), LARGE)
    except DocumentError as error:
        raise SourceError(str(error)) from error
    if not isinstance(document, dict):
        raise SourceError(f"{path} holds no mapping; copy the folder again")
    return document


def _check_weights(folder: Path, options: SourceOptions) -> None:
    """Checks that the weights are there, are data, and fit into memory."""
    if (folder / INDEX).exists():
        named = _json(_inside(folder, INDEX)).get("weight_map")
        if not isinstance(named, dict) or not named:
            raise SourceError(f"{folder / INDEX} has no weight_map; copy the folder again")
        files = [_inside(folder, str(name)) for name in sorted(set(map(str, named.values())))]
    elif (folder / WEIGHTS).exists():
        files = [_inside(folder, WEIGHTS)]
    else:
        pickles = [str(p) for p in files_below(folder) if p.suffix in (".bin", ".pt", ".pth")]
        if not pickles or not options.allow_pickle:
            found = f"only {', '.join(pickles[:3])}, a pickle" if pickles else "no weights"
            raise SourceError(
                f"{folder} has no {WEIGHTS}, {found}; save it with save_pretrained(..., "
                f"safe_serialization=True); {WHAT_CODE_CAN_DO}"
            )
        files = [_inside(folder, name) for name in pickles]
    total = sum(map(file_size, files))
    if total > options.limits.memory_gib * GIB:
        raise SourceError(
            f"{folder} has {total / GIB:,.1f} GiB of weights, and the memory limit is "
            f"{options.limits.memory_gib:g} GiB"
        )


def _export(
    folder: Path, program: Path, config: Mapping[str, Any], options: SourceOptions
) -> Examined:
    """Runs in the isolated process."""
    os.environ.update(_OFFLINE)
    with quiet():
        network = _network(folder, config, options.allow_pickle)
        inputs, own = _inputs(folder.name, network, config, options)
        pooled = _pooled(folder, network, [tensor.name for tensor in inputs])
        run = torch_run(folder.name, pooled, [tensor.name for tensor in inputs])
        labels = _labels(config)
        examined = examine(folder.name, run, inputs, options, own_examples=own)
        outputs = {spec.name: spec.shape for spec in examined.signature.outputs}
        flat = OutputsInOrder(pooled, list(outputs)).eval()
        export_module(flat, inputs, examined.examples, options, program)
    fits = labels is not None and outputs.get("logits", (0,))[-1] == len(labels)
    signature = _padded(examined.signature, inputs)
    if fits and labels is not None:
        signature = signature.model_copy(update={"labels": {"logits": labels}})
    made = own is not None and options.examples is None
    return Examined(
        signature=signature,
        examples=examined.examples,
        made_up=made,
        notes=(*examined.notes, *(("the example inputs are random tokens or pixels",) * made)),
    )


def _network(folder: Path, config: Mapping[str, Any], allow_pickle: bool) -> Any:
    import transformers

    names = config.get("architectures") or []
    name = str(names[0]) if isinstance(names, list) and names else ""
    found = getattr(transformers, name, None) if re.fullmatch(r"[A-Z]\w+", name) else None
    is_model = isinstance(found, type) and issubclass(found, transformers.PreTrainedModel)
    architecture: Any = found if is_model else transformers.AutoModel
    try:
        network = architecture.from_pretrained(
            str(folder),
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=not allow_pickle or None,
            attn_implementation="eager",
            dtype=torch.float32,
        )
    except Exception as error:  # transformers raises many types
        raise SourceError(
            f"transformers cannot make {name or 'the model'} of {folder.name}: {root_cause(error)}"
        ) from None
    network.config.use_cache = False
    return network.eval()


def _inputs(
    where: str, network: Any, config: Mapping[str, Any], options: SourceOptions
) -> tuple[tuple[ReadTensor, ...], dict[str, Array] | None]:
    """Returns the inputs, and made-up rows of them; None where the user's are used."""
    main = str(network.main_input_name)
    generator = np.random.default_rng(0)
    if main == "input_ids":
        longest = int(config.get("max_position_embeddings") or 512)
        if longest & (longest - 1):  # models such as RoBERTa count positions from 2: 514 for 512
            longest -= 2
        longest = max(longest, 2)
        ranges: dict[int, SizeLimit] = {1: (1, longest)}
        names = ("input_ids", "attention_mask")
        inputs = tuple(
            ReadTensor(name=n, datatype="INT64", dims=(BATCH, LENGTH), ranges=ranges) for n in names
        )
        length = min(SHOWN_LENGTH, longest)
        tokens = generator.integers(0, int(config.get("vocab_size") or 2), (ROWS, length))
        mask = (np.arange(length) < length - np.arange(ROWS)[:, None] % length).astype(np.int64)
        return inputs, {"input_ids": tokens, "attention_mask": mask}
    if main == "pixel_values" and isinstance(config.get("image_size"), int):
        shape = (int(config.get("num_channels") or 3), *([int(config["image_size"])] * 2))
        pixels = generator.standard_normal((ROWS, *shape), np.float32)
        only = ReadTensor(name=main, datatype="FP32", dims=(BATCH, *shape))
        return (only,), {main: pixels}
    shown = tensors_of_examples(list(options.examples or {}), options)
    if shown is None:
        raise SourceError(
            f"{where} takes {main}, whose shape its configuration does not state; give --examples "
            f"x.npz with {main} [rows, ...]"
        )
    return shown, None


def _padded(signature: Signature, inputs: Sequence[ReadTensor]) -> Signature:
    """Adds the padding of texts, by which requests of different lengths share a batch."""
    by_name = {tensor.name: tensor for tensor in inputs}
    if set(by_name) != {"input_ids", "attention_mask"}:
        return signature
    longest = by_name["input_ids"].ranges[1][1]
    assert longest is not None, "it is the length of the positions"
    padding = Padding(
        inputs={"input_ids": 1},
        mask="attention_mask",
        buckets=(*(size for size in BUCKETS if size < longest), longest),
        outputs={s.name: 1 for s in signature.outputs if len(s.shape) == 3 and s.shape[1] == -1},
    )
    return Signature(**{**dict(signature), "padding": padding, "dynamic": {}, "limits": {}})


class _Named(nn.Module):
    """A network of transformers, called by names, with the pooling of sentence-transformers."""

    def __init__(self, network: nn.Module, names: list[str], pooling: str, unit: bool) -> None:
        super().__init__()
        self.network, self.names, self.pooling, self.unit = network, names, pooling, unit

    def forward(self, *inputs: Tensor) -> Any:
        """Returns the network's outputs, or `sentence_embedding` [rows, size]."""
        named = dict(zip(self.names, inputs, strict=True))
        found = self.network(**named, return_dict=True)
        if not self.pooling:
            return found
        hidden = found["last_hidden_state"]  # [rows, length, size]
        if self.pooling == "cls":
            pooled = hidden[:, 0]
        else:
            mask = named["attention_mask"].unsqueeze(-1).to(hidden.dtype)
            pooled = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1e-9)
        if self.unit:
            pooled = nn.functional.normalize(pooled, dim=1)
        return {"sentence_embedding": pooled}


def _pooled(folder: Path, network: nn.Module, names: list[str]) -> nn.Module:
    """Adds the modules that sentence-transformers would run after the network."""
    if not (folder / "modules.json").exists():
        return _Named(network, names, "", False)
    try:
        stored = _inside(folder, "modules.json")
        modules = parse_document(read_text(stored).encode(), str(stored), LARGE)
        kinds = {str(m["type"]).rpartition(".")[2]: str(m["path"]) for m in modules}
    except (DocumentError, TypeError, KeyError) as error:
        raise SourceError(f"{folder / 'modules.json'} cannot be read: {error}") from error
    if unknown := sorted(set(kinds) - {"Transformer", "Pooling", "Normalize"}):
        raise SourceError(
            f"{folder} has modules of sentence-transformers that are not known here "
            f"({', '.join(unknown)}); publish it from Python with flambeau.publish"
        )
    pooling = ""
    if "Pooling" in kinds:
        pooling = _pooling_mode(folder, _json(_inside(folder, f"{kinds['Pooling']}/{CONFIG}")))
    return _Named(network, names, pooling, "Normalize" in kinds)


def _pooling_mode(folder: Path, config: Mapping[str, Any]) -> str:
    modes = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}
    on = [key for key, value in config.items() if key.startswith("pooling_mode_") and value is True]
    stated = config.get("pooling_mode")
    if not on and stated in modes.values():
        return str(stated)
    if len(on) != 1 or on[0] not in modes:
        raise SourceError(
            f"{folder} pools by {', '.join(on) or stated}; mean and cls are known here: publish it "
            "from Python with flambeau.publish"
        )
    return modes[on[0]]


def _labels(config: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Returns the names of the classes, in order; None without."""
    found = config.get("id2label")
    if not isinstance(found, dict) or not all(str(k).isdecimal() for k in found):
        return None
    ordered = sorted(found.items(), key=lambda item: int(item[0]))
    return tuple(str(label) for _, label in ordered)
