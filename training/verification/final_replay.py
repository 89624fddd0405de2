"""Replays the files of a version from their folder, right before it is published.

In: a draft and the folder with its files. Out: nothing, or a refusal.

Rule: nothing is taken from memory. The golden rows are read from the golden file and the artifacts
from their own files, as on a server, so that rows that were written wrongly are found before an
alias can move to a version that every server would refuse.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from flambeau.protocol.tensors import Array
from model_store.arrays.golden_replay import replay_once, run_in_batches
from model_store.arrays.parity import Parity, compare
from model_store.arrays.sequence_replay import replay_in_steps
from model_store.golden import GoldenRows, parse_golden
from model_store.manifest import Artifact, Draft
from training.errors import IsolationError, NothingProvenError
from training.network.python_step import Step
from training.process.isolated_run import run_limited
from training.recipe.recipe import ExportLimits
from training.verification.runners import file_runner

STEP_HEADROOM = 2.0
"""Growth of a limit, by the measured effect of a step's rounding: other batches round otherwise."""
MAX_STEP_GROWTH = 10.0
"""Largest growth of a limit, as a multiple of it."""


def replay_files(draft: Draft, folder: Path, step: Step | None, limits: ExportLimits) -> None:
    """Runs the stored golden rows through every artifact, in a separate process.

    The Python step runs as on a server: on all rows together, and on each row alone.

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
    if step is not None:
        golden = together_and_alone(golden, step)
    try:
        failure = run_limited(
            first_failure,
            draft,
            folder,
            golden,
            limits=limits,
            time_limit_s=limits.time_s * len(draft.artifacts),
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
        for steps in replay_in_steps(run, golden, signature, tolerance.single_gates):
            if (failure := steps.failure(tolerance)) is not None:
                return f"{artifact.name}: {failure}"
    return None


def together_and_alone(golden: GoldenRows, step: Step) -> GoldenRows:
    """Returns all rows after a step that ran on them together, then after one run for each row.

    Args:
        golden: raw rows, and the outputs for them.
        step: the Python step.
    """
    alone = run_in_batches(step.run, golden.inputs, 1)
    inputs = step.run(golden.inputs)
    return GoldenRows(
        {name: np.concatenate([array, alone[name]]) for name, array in inputs.items()},
        {name: np.concatenate([array, array]) for name, array in golden.outputs.items()},
    )


def with_step_rounding(draft: Draft, folder: Path, step: Step, limits: ExportLimits) -> Draft:
    """Returns the draft with tolerances that allow for the rounding of its Python step.

    A step that adds in another order for another number of rows gives floats that differ by
    rounding (`ROUNDING`), which a network may amplify: no server could load such a version. Each
    limit grows by `STEP_HEADROOM` times what the step's rounding alone changes in the artifact's
    outputs, and to `MAX_STEP_GROWTH` times itself at most.

    Args:
        draft: the version to publish.
        folder: the folder of its files.
        step: its Python step.
        limits: limits of one artifact.
    """
    golden = parse_golden((folder / draft.golden.file.file).read_bytes(), draft)
    both = together_and_alone(golden, step)
    halves = [{n: a[part] for n, a in both.inputs.items()}
              for part in (slice(golden.rows), slice(golden.rows, None))]  # fmt: skip
    if all(np.array_equal(array, halves[1][name]) for name, array in halves[0].items()):
        return draft
    try:
        gaps = run_limited(
            _gaps,
            draft,
            folder,
            halves,
            limits=limits,
            time_limit_s=limits.time_s * len(draft.artifacts),
        )
    except IsolationError:  # the replay of the files tells why
        return draft
    artifacts = tuple(_widened(a, gap) for a, gap in zip(draft.artifacts, gaps, strict=True))
    return draft.model_copy(update={"artifacts": artifacts})


def _gaps(draft: Draft, folder: Path, halves: Sequence[Mapping[str, Array]]) -> list[Parity]:
    """Returns how far each artifact's outputs for one form of the rows are from the other's."""
    torch.set_num_threads(1)
    signature = draft.signature.model_copy(update={"inputs": draft.artifact_inputs()})
    found = []
    for artifact in draft.artifacts:
        path = folder / artifact.file.file
        run = file_runner(artifact.kind, artifact.precision, path, signature)
        one, other = (run_in_batches(run, half, signature.max_batch_size) for half in halves)
        found.append(compare(one, other, artifact.verification.tolerance.single_gates))
    return found


def _widened(artifact: Artifact, gap: Parity) -> Artifact:
    proof = artifact.verification
    limit = proof.tolerance.max_abs_difference
    grown = min(limit + STEP_HEADROOM * gap.max_abs_difference, MAX_STEP_GROWTH * limit)
    tolerance = proof.tolerance.model_copy(update={"max_abs_difference": grown})
    proof = proof.model_copy(update={"tolerance": tolerance})
    return artifact.model_copy(update={"verification": proof})
