"""Checks that this machine can run an artifact at all, before a byte of it is read.

In: the artifact's entry in the manifest, and a device. Out: nothing, or an error that names what
is missing: a runtime, features of the processor, a version of torch.
"""

import importlib.util
from collections.abc import Collection
from importlib import metadata

from model_store.host.cpu_features import FP16_FEATURES, cpu_features
from model_store.host.install_advice import install_command
from model_store.manifest import Artifact
from services.errors import BackendError
from services.inference.backends.device import Device
from services.inference.backends.served_kinds import SERVED_KINDS


class UnfitArtifactError(BackendError):
    """This machine cannot run the artifact; the message states what is missing and what to do."""


def check_fit(artifact: Artifact, device: Device) -> None:
    """Refuses an artifact that cannot run here, or only extremely slowly.

    Raises:
        UnfitArtifactError: the artifact is unfit; has the reason.
    """
    kind = SERVED_KINDS[artifact.kind]
    if importlib.util.find_spec(kind.package) is None:
        raise UnfitArtifactError(
            f"it runs through {kind.package}, which is not installed here: "
            f"{install_command(kind.extra)}"
        )
    if device.kind not in kind.backends:
        others = [name for name, other in SERVED_KINDS.items() if device.kind in other.backends]
        raise UnfitArtifactError(
            f"{artifact.kind} runs on {'the CPU' if 'cpu' in kind.backends else 'GPUs'} only, not "
            f"on {device} yet; serve the version's {' or '.join(others)} artifact there"
        )
    if device.kind == "cuda":
        return
    if artifact.precision == "fp16" and not FP16_FEATURES & set(cpu_features()):
        raise UnfitArtifactError(
            "it computes in fp16, and this processor has neither avx512_fp16 nor amx_fp16: torch "
            "took 7 times as long as in fp32 for batches of 32 of a small CNN, and 56 times for "
            "a larger one, and ONNX Runtime computes in fp32 after all; serve bf16, int8 or fp32, "
            "or a GPU"
        )
    if kind.is_native:
        _check_compiled_for(artifact, metadata.version("torch"), cpu_features())


def _check_compiled_for(artifact: Artifact, torch_here: str, here: Collection[str]) -> None:
    made = artifact.made_with
    if made.device != "cpu":
        raise UnfitArtifactError(
            f"it was compiled for {made.device}, and the device here is cpu; compile it on this "
            "kind of machine"
        )
    torch_there = made.libraries.get("torch")
    if torch_there is None or _release(torch_there) != _release(torch_here):
        raise UnfitArtifactError(
            f"it was compiled by torch {torch_there or 'of an unrecorded version'}, and torch "
            f"{torch_here} is installed here; install that version, or publish the model anew"
        )
    if missing := [feature for feature in made.cpu_features if feature not in here]:
        raise UnfitArtifactError(
            f"it was compiled for a processor with {', '.join(missing)}, which this one lacks "
            f"(it has {', '.join(here) or 'no known ones'}); compile it on this kind of "
            "machine, or serve another artifact"
        )


def _release(version: str) -> str:
    """Returns a version without its build (`2.13.0` of `2.13.0+cpu`): builds share interfaces."""
    return version.split("+")[0]
