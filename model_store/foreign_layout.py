"""Recognises a folder or bucket that holds something, and is no model store.

In: the paths below a URL where no version was found. Out: one sentence that says what it looks
like and what to do; empty for a store that is empty, or in which the first version is being
published. Pure.
"""

import re
from collections.abc import Callable, Iterable, Sequence

from model_store.manifest import CLAIM, MANIFEST, is_name

MAX_DEPTH = 4
"""Of the paths that are looked at: a store in a folder of its own lies that deep."""
MAX_PATHS = 2000
MAX_NAMES = 5

_NUMBER = re.compile(r"[0-9]+")
_BESIDE_VERSIONS = {
    "pointers": ".json",
    "semver": ".json",
    "certificates": ".json",
    "samples": ".jsonl",
}
"""Folders of a model that is ours, beside its versions, and how their files' names end."""
_NEUTRAL = frozenset({"lost+found"})
"""Of a file system; so is what begins with a dot."""
_WEIGHTS = {
    ".onnx": "ONNX files",
    ".pt": "PyTorch files",
    ".pth": "PyTorch files",
    ".pt2": "PyTorch files",
    ".safetensors": "safetensors files",
    ".keras": "Keras files",
    ".h5": "Keras files",
    ".gguf": "GGUF files",
}
_WHAT_TO_DO = (
    "flambeau serves versions that were published, with their proof, into its own layout "
    "(docs/model-store.md), and takes no files of other tools: train your network by a recipe "
    "(flambeau train), or give the URL of another store"
)

_Parts = tuple[str, ...]


def foreign_layout(url: str, paths: Iterable[str]) -> str:
    """Says what a place without a version holds; empty if that is nothing, or ours.

    Args:
        url: the place, for the sentence.
        paths: of files that lie there, relative to it; more than `MAX_DEPTH` levels are not
            looked at.
    """
    split = [tuple(path.split("/")) for path in paths]
    found = [p for p in split if p[0] not in _NEUTRAL and not p[0].startswith(".")]
    if not found or any(map(_is_being_published, found)):
        return ""
    depths = {len(p): p for p in found if p[-1] == MANIFEST and _is_number(p[:-1][-1:])}
    if 2 in depths:
        return f"{url} is the folder of one model: give the URL of the store, the folder above it"
    if 3 in depths:
        return f"'{depths[3][0]}' in the store {url} is no name of a model: rename the folder"
    if depths:
        folder = "/".join(depths[min(depths)][:-3])
        return f"{url} is no model store, but its folder '{folder}' is: give {url}/{folder}"
    if kind := next((kind for kind, fits in _KINDS if any(map(fits, found))), ""):
        return f"the store {url} looks like {kind}: {_WHAT_TO_DO}"
    names = sorted({p[0] for p in found})
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    listed = ", ".join(names[:MAX_NAMES])
    return f"the store {url} holds {listed}{more}, and no model: {_WHAT_TO_DO}"


def _is_number(parts: _Parts) -> bool:
    return len(parts) == 1 and bool(_NUMBER.fullmatch(parts[0]))


def _is_being_published(parts: _Parts) -> bool:
    """Whether a file tells that a model here is ours, and has no version yet, or any more."""
    if len(parts) < 3 or not is_name(parts[0]):
        return False
    if parts[1] in _BESIDE_VERSIONS:
        return parts[-1].endswith(_BESIDE_VERSIONS[parts[1]])
    return bool(_NUMBER.fullmatch(parts[1])) and parts[2] in (CLAIM, MANIFEST)


def _is_triton(parts: _Parts) -> bool:
    if len(parts) == 2:
        return parts[1] == "config.pbtxt"
    return len(parts) >= 3 and bool(_NUMBER.fullmatch(parts[1])) and parts[2].startswith("model.")


def _has_weights_of(suffixes: Sequence[str]) -> Callable[[_Parts], bool]:
    return lambda parts: parts[-1].endswith(tuple(suffixes))


_KINDS: list[tuple[str, Callable[[_Parts], bool]]] = [
    ("a Triton model repository", _is_triton),
    ("SavedModels for TensorFlow Serving", lambda p: p[-1] == "saved_model.pb"),
    ("MLflow models", lambda p: p[-1] == "MLmodel"),
    ("TorchServe archives", _has_weights_of([".mar"])),
    *((f"a folder of {kind}", _has_weights_of([end])) for end, kind in _WEIGHTS.items()),
]
