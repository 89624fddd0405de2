"""Finds the version that `model`, `model@4`, `model@production` or `model@^1.2` names.

Rule: a name that could be both an alias and a semantic version is an alias, for compatibility.
"""

import re

from flambeau.protocol.strict import nearest_name
from model_store.errors import VersionNotFoundError
from model_store.manifest import Manifest
from model_store.pointers import PRODUCTION
from model_store.semver.semver import parse_range
from model_store.semver.semver_index import fitting
from model_store.store import ModelStore

_SHORT = re.compile(r"\d+\.\d+$")
"""A semantic version without its last number, which is neither one version nor a range."""


def find_version(store: ModelStore, address: str) -> Manifest:
    """Returns the version that an address names.

    Args:
        store: the store.
        address: name of a model, alone for its live version, or else the newest; or followed by `@`
            and a number, an alias, or a range of semantic versions.

    Raises:
        ModelNotFoundError: the store has no such model.
        VersionNotFoundError: the model has no such version.
        StoreError: the store cannot be read.
    """
    name, separator, wanted = address.partition("@")
    if wanted.isdecimal():
        return store.manifest(name, int(wanted))
    versions = store.versions(name)
    pointers = store.pointers(name)
    aliases = {} if pointers is None else pointers.aliases
    if not separator:
        return store.manifest(name, aliases.get(PRODUCTION, versions[-1]))
    if wanted in aliases:
        return store.manifest(name, aliases[wanted])
    semver_range = parse_range(wanted)
    if semver_range is not None:
        return fitting(store, name, semver_range, wanted)
    hint = f"; write ^{wanted}, ~{wanted} or all three numbers" if _SHORT.match(wanted) else ""
    raise VersionNotFoundError(
        f"'{name}' has no alias '{wanted}'{nearest_name(wanted, aliases)}; its versions: "
        f"{', '.join(map(str, versions))}{hint}"
    )
