"""Loads initial weights from a version in the store.

In: `model.from` of a recipe, such as `digits@3`, `digits@production` or `digits@^1.2`, and a
network. Out: the network with all matching weights of the version's checkpoint, and a report of the
others.

Rules: bytes are checked against the manifest's digest before they are parsed; a checkpoint is
safetensors, which is data. `training.network.stored_version` finds the version.
"""

import json
from dataclasses import asdict, dataclass

import torch
from safetensors.torch import load
from torch import Tensor, nn

from model_store.errors import StoreError
from model_store.manifest import Parent
from model_store.store import ModelStore
from training.errors import RecipeError
from training.network.preprocessing import network_of
from training.network.stored_version import beginning_with, stored_version
from training.recipe.recipe import Recipe

CHECKPOINT = "checkpoint.safetensors"
NETWORK = "network."
"""Prefix of weight names in a checkpoint whose network has `preprocess` in front of it."""
NAMES_SAID = 8


@dataclass(frozen=True, slots=True)
class TransferReport:
    """Loaded and other weights; names are those of the network without its `preprocess`."""

    taken: tuple[str, ...]
    """Loaded from the checkpoint."""
    skipped: dict[str, str]
    """In both, with different shapes or kinds of number: the two kinds."""
    missing: tuple[str, ...]
    """Only in the network: initialised as without `from`."""
    unexpected: tuple[str, ...]
    """Only in the checkpoint."""

    def lines(self) -> list[str]:
        """Returns a summary for people, one line for each kind that occurs."""
        skipped = [f"{name} ({why})" for name, why in self.skipped.items()]
        rest = (
            ("skipped for their shape", skipped),
            ("missing there", self.missing),
            ("unexpected here", self.unexpected),
        )
        return [f"{len(self.taken)} weights taken"] + [
            f"{len(names)} {what}: {', '.join(names[:NAMES_SAID])}"
            + (" and more" if len(names) > NAMES_SAID else "")
            for what, names in rest
            if names
        ]

    def to_json(self) -> bytes:
        """Returns the report for the folder of the run."""
        return (json.dumps(asdict(self), indent=2) + "\n").encode()


@dataclass(frozen=True, slots=True)
class FirstWeights:
    """The checkpoint of a version from which another training starts."""

    parent: Parent
    """The version, for the lineage."""
    tensors: dict[str, Tensor]
    """By their names in that checkpoint."""

    def put_into(self, model: nn.Module) -> TransferReport:
        """Copies all weights that match.

        Raises:
            RecipeError: no weight matches.
        """
        report = copy_matching(self.tensors, model)
        if not report.taken:
            own = network_of(model).state_dict()
            raise RecipeError(
                f"model.from {self.parent.words}: none of its weights fits the network; it has "
                f"{_some(self.tensors)}, and the network {_some(own)}"
            )
        return report


def copy_matching(tensors: dict[str, Tensor], model: nn.Module) -> TransferReport:
    """Copies all weights that have the same name, shape and kind of number into a network.

    Args:
        tensors: weights by their names in a file.
        model: network, with or without its `preprocess`.
    """
    own = network_of(model).state_dict()
    given = named_as_in(own, tensors)
    skipped = {
        name: f"{_kind(tensor)} there, {_kind(own[name])} here"
        for name, tensor in given.items()
        if name in own and _kind(tensor) != _kind(own[name])
    }
    taken = [name for name in given if name in own and name not in skipped]
    with torch.no_grad():
        for name in taken:
            own[name].copy_(given[name])
    # A weight that layers share has one name in a file, and one for each layer in a network.
    places = {(own[name].data_ptr(), own[name].shape) for name in taken}
    here = {(n, (t.data_ptr(), t.shape)) for n, t in own.items() if n not in given}
    return TransferReport(
        taken=tuple(taken),
        skipped=skipped,
        missing=tuple(sorted(name for name, place in here if place not in places)),
        unexpected=tuple(name for name in given if name not in own),
    )


def named_as_in(own: dict[str, Tensor], tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns a file's tensors by their names in a network, in the order of names.

    They differ if the file is of a network with `preprocess` in front of it.
    """
    behind_steps = {
        name.removeprefix(NETWORK): tensor
        for name, tensor in tensors.items()
        if name.startswith(NETWORK)
    }
    most = max(tensors, behind_steps, key=lambda names: len(own.keys() & names.keys()))
    return dict(sorted(most.items()))


def with_parent(recipe: Recipe, store: ModelStore) -> tuple[Recipe, FirstWeights | None]:
    """Returns the recipe with the number of its parent version, and that version's weights.

    Args:
        recipe: the run.
        store: the store of the version.

    Raises:
        RecipeError: there is no such model, version or alias, or it has no checkpoint.
        StoreError: the version is damaged: a file does not match its manifest.
    """
    if recipe.model.from_ is None:
        return recipe, None
    manifest = stored_version(store, recipe.model.from_)
    name = manifest.model
    entry = manifest.file(CHECKPOINT)
    if entry is None:
        raise RecipeError(
            f"model.from {name}@{manifest.version}: the version was published without "
            f"{CHECKPOINT}; take another"
        )
    data = store.read_file(manifest, entry)
    try:
        tensors = load(data)
    except Exception as error:  # safetensors raises several unrelated types
        raise StoreError(
            f"{name}@{manifest.version}: {CHECKPOINT} cannot be read as safetensors: {error}; "
            "take another version"
        ) from error
    parent = Parent(
        model=name,
        version=manifest.version,
        checkpoint_sha256=entry.sha256,
        semver=manifest.semver,
    )
    return beginning_with(recipe, manifest), FirstWeights(parent, tensors)


def _kind(tensor: Tensor) -> str:
    number = "" if tensor.is_floating_point() else f" {str(tensor.dtype).removeprefix('torch.')}"
    return f"{list(tensor.shape)}{number}"


def _some(tensors: dict[str, Tensor]) -> str:
    found = [f"{name} {list(tensor.shape)}" for name, tensor in tensors.items()]
    return ", ".join(found[:NAMES_SAID]) + (" and more" if len(found) > NAMES_SAID else "")
