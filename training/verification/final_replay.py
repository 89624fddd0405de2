"""Replays the files of a version from their folder, right before it is published.

In: a draft and the folder with its files. Out: nothing, or a refusal.

Rule: nothing is taken from memory. The golden rows are read from the golden file and the artifacts
from their own files, as on a server, so that rows that were written wrongly are found before an
alias can move to a version that every server would refuse.
"""

from pathlib import Path

import torch

from model_store.arrays.golden_replay import replay_once
from model_store.golden import GoldenRows, parse_golden
from model_store.host.memory_limit import GIB
from model_store.manifest import Draft
from training.errors import IsolationError, NothingProvenError
from training.network.python_step import Step
from training.process.isolated_run import run_isolated
from training.recipe.recipe import ExportLimits
from training.verification.runners import file_runner


def replay_files(draft: Draft, folder: Path, step: Step | None, limits: ExportLimits) -> None:
    """Runs the stored golden rows through every artifact, in a separate process.

    Args:
        draft: the version to publish.
        folder: the folder of its files.
        step: the Python step that the golden rows pass first.
        limits: limits of one artifact.

    Raises:
        NothingProvenError: an artifact does not give the stored golden outputs.
        GoldenMismatchError: the golden file does not match the signature.
    """
    golden = parse_golden((folder / draft.golden.file.file).read_bytes(), draft)
    inputs = golden.inputs if step is None else step.run(golden.inputs)
    try:
        failure = run_isolated(
            first_failure,
            draft,
            folder,
            GoldenRows(inputs, golden.outputs),
            time_limit_s=limits.time_s * len(draft.artifacts),
            memory_limit_bytes=int(limits.memory_gib * GIB),
        )
    except IsolationError as error:
        failure = f"the artifacts do not run any more: {error}"
    if failure is not None:
        raise NothingProvenError(
            f"the files of '{draft.model}' differ from what was verified, so nothing is published "
            f"({failure}); train again with --resume, and report it if it happens again: the disk "
            f"below {folder} is damaged, or flambeau wrote a file wrongly"
        )


def first_failure(draft: Draft, folder: Path, golden: GoldenRows) -> str | None:
    """Returns a message with the first artifact that fails on the golden rows; None without one.

    Args:
        draft: the artifacts and their tolerances.
        folder: the folder of their files.
        golden: the stored rows, after the Python step.
    """
    torch.set_num_threads(1)
    signature = draft.signature.model_copy(update={"inputs": draft.artifact_inputs()})
    for artifact in draft.artifacts:
        path, tolerance = folder / artifact.file.file, artifact.verification.tolerance
        run = file_runner(artifact.kind, artifact.precision, path, signature)
        where, rows = f"{artifact.name}: the stored golden rows", signature.max_batch_size
        failure = replay_once(where, run, golden, rows, tolerance.single_gates).failure(tolerance)
        if failure is not None:
            return failure
    return None
