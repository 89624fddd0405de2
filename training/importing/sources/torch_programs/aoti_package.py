"""Reads an AOTInductor package: its platform before it is opened, shapes by the examples.

A package is native code, which runs when it is opened: only if the user allows that, in a separate
process with limits, and on the processor and torch that it was compiled for.
"""

import json
import platform
import re
from pathlib import Path
from typing import Any

import torch

from model_store.document import SMALL, parse_document
from model_store.errors import DocumentError
from training.errors import SourceError
from training.importing.original import Original
from training.importing.sources.apart import call_apart
from training.importing.sources.archive import check_sizes, member_names, read_member
from training.importing.sources.examination import Examined, examine, model_inputs
from training.importing.sources.foreign_files import staged_copy
from training.importing.sources.source_options import SourceOptions
from training.importing.sources.torch_programs.program_safety import CODE_CAN
from training.importing.sources.torch_programs.torch_examination import (
    is_in_order,
    tensors_of_examples,
    torch_run,
)

FILE = "model.aoti.pt2"
CODE_NOTE = "the package is native code, which ran on this machine while it was examined"


def read(path: Path, options: SourceOptions, staging: Path) -> Original:
    """Reads a package.

    Args:
        path: the file.
        options: examples, largest batch and limits.
        staging: folder of ours for the copy.

    Raises:
        SourceError: it is damaged, of another platform, lacks examples, cannot be served, or the
            user does not allow native code.
        ArchiveError: it is a zip bomb.
    """
    check_sizes(path)
    _check_platform(path)
    if not options.allow_native_code:
        raise SourceError(
            f"{path.name} is an AOTInductor package: opening it runs its native code. Import the "
            f".pt2 that it was compiled from in its place; {CODE_CAN} --allow-native-code only for "
            "files that you trust"
        )
    copy = staged_copy(path, staging, FILE)
    examined: Examined = call_apart(
        _examine, copy, path.name, options, where=path.name, limits=options.limits
    )
    return examined.original("aoti", copy, path.name, notes=(CODE_NOTE,))


def _check_platform(path: Path) -> None:
    """Compares the package's metadata with this machine, before its code is loaded."""
    for name in member_names(path):
        if not name.endswith("_metadata.json"):
            continue
        try:
            said = parse_document(read_member(path, name), f"{path.name}: {name}", SMALL)
        except DocumentError as error:
            raise SourceError(str(error)) from error
        said = said if isinstance(said, dict) else {}
        for key, here in (
            ("AOTI_DEVICE_KEY", "cpu"),
            ("AOTI_PLATFORM", platform.system().lower()),
            ("AOTI_MACHINE", platform.machine()),
        ):
            if said.get(key, here) != here:
                raise SourceError(
                    f"{path.name} was compiled for {str(said[key])[:40]!r}, and this is {here}; "
                    "import the .pt2 that it was compiled from"
                )


def _examine(path: Path, where: str, options: SourceOptions) -> Examined:
    model = torch._inductor.aoti_load_package(str(path))
    in_spec, out_spec = (json.loads(text) for text in model.loader.get_call_spec())
    names = _names(where, in_spec, options)
    inputs = tensors_of_examples(names, options)
    assert inputs is not None, "names come from the examples"
    run = torch_run(where, model, names)
    examined = examine(where, run, inputs, options)
    batch = model_inputs(examined.examples, examined.signature.inputs, 2)
    first = [torch.from_numpy(array.copy()) for array in batch.values()]
    with torch.inference_mode():
        found = model(*first)
    if not is_in_order(found):
        kind = re.sub(r"^.*\.", "", str(out_spec[1].get("type")))
        raise SourceError(
            f"{where} returns a {kind}, and servers take a tensor or a tuple of tensors; compile a "
            "module that returns those"
        )
    return examined


def _names(where: str, in_spec: Any, options: SourceOptions) -> list[str]:
    """Returns the names of the inputs: those of the examples, in order, as packages have none."""
    args, kwargs = in_spec[1]["children_spec"]
    count = len(args["children_spec"])
    if kwargs["children_spec"] or any(one["children_spec"] for one in args["children_spec"]):
        raise SourceError(f"{where} takes inputs by name or in structures; compile it with tensors")
    if options.examples is None or len(options.examples) != count:
        given = "none" if options.examples is None else ", ".join(options.examples)
        raise SourceError(
            f"{where} takes {count} inputs, whose names and shapes it does not contain; give "
            f"--examples x.npz with an array [rows, ...] for each, in order (given: {given})"
        )
    return list(options.examples)
