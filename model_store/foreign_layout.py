"""Recognises a folder or bucket with content that is not a model store.

In: the paths below a URL where no version was found. Out: one sentence that names the probable
layout and the remedy; empty for an empty store, or one whose first version is being published.
Pure.
"""

import re
from collections.abc import Callable, Iterable, Sequence

from flambeau.protocol.names import is_name
from model_store.manifest import CLAIM, MANIFEST

MAX_DEPTH = 4
"""Levels of the paths that are examined: enough for a store in a subfolder."""
MAX_PATHS = 2000
MAX_NAMES = 5

_NUMBER = re.compile(r"[0-9]+")
_BESIDE_VERSIONS = {
    "pointers": ".json",
    "semver": ".json",
    "tombstones": ".json",
    "annotations": ".json",
    "certificates": ".json",
    "requests": ".json",
    "samples": ".jsonl",
}
"""Folders beside the versions of a model in our layout, and the suffix of their files."""
_NEUTRAL = frozenset({"lost+found"})
"""Names of the file system, which are ignored, as are names that begin with a dot."""
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
    "(docs/guides/model-store.md): publish these files there (flambeau import), or give the URL of "
    "another store"
)

_Parts = tuple[str, ...]


def foreign_layout(url: str, paths: Iterable[str]) -> str:
    """Describes the content of a location without a version; empty if it is empty or our layout.

    Args:
        url: the location, for the sentence.
        paths: paths of the files below it, relative to it; only `MAX_DEPTH` levels matter.
    """
    split = [tuple(path.split("/")) for path in paths]
    found = [p for p in split if p[0] not in _NEUTRAL and not p[0].startswith(".")]
    if not found or any(map(_is_being_published, found)):
        return ""
    depths = {len(p): p for p in found if p[-1] == MANIFEST and _is_number(p[:-1][-1:])}
    if 2 in depths:
        return f"{url} is the folder of one model: give the URL of the store, the folder above it"
    if 3 in depths:
        return f"'{depths[3][0]}' in the store {url} is not a model name: rename the folder"
    if depths:
        folder = "/".join(depths[min(depths)][:-3])
        return f"{url} is not a model store, but its folder '{folder}' is: give {url}/{folder}"
    if kind := next((kind for kind, fits in _KINDS if any(map(fits, found))), ""):
        return f"the store {url} looks like {kind}: {_WHAT_TO_DO}"
    names = sorted({p[0] for p in found})
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    listed = ", ".join(names[:MAX_NAMES])
    return f"the store {url} holds {listed}{more}, and no model: {_WHAT_TO_DO}"


def _is_number(parts: _Parts) -> bool:
    return len(parts) == 1 and bool(_NUMBER.fullmatch(parts[0]))


def _is_being_published(parts: _Parts) -> bool:
    """Returns True if a file belongs to a model in our layout, even one without a version."""
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
