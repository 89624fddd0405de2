"""Verifies a published version with its recipe: against the checkpoint and on the test split.

In: the files of a version, and the recipe's own code on this machine. Out: for each artifact the
comparison on held-out rows, and the task metric.

Rules: code and data must be those of the version: other data has another digest, and other code
gives other golden outputs; both are refused, since their results would say nothing about the
artifact.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from flambeau.protocol.row_form import Run
from flambeau.protocol.tensors import Array
from model_store.arrays.golden_replay import replay_sized, run_in_batches, sized_inputs
from model_store.arrays.parity import Comparison, compare, compare_rows
from model_store.golden import GoldenRows
from model_store.manifest import Artifact, Manifest
from model_store.python_step import StepFunction
from model_store.tolerance import Tolerance
from training.auto.candidates import ModelContents, possible_entries
from training.datasets import load_splits
from training.errors import DataError, TargetError
from training.loop.trained_model import trained_model
from training.metrics.task_metric import TaskMetric
from training.network.python_step import open_recipe_step
from training.network.runner import module_runner
from training.recipe.kinds.export_kinds import Export
from training.recipe.parts.auto_export import AutoPart
from training.recipe.recipe import Recipe
from training.verification.departure import Departed, departs_at
from training.verification.gate import too_far_off, too_much_worse

SAME_CHECKPOINT = Tolerance(
    max_abs_difference=1e-2, min_agreement=0.98, max_probability_shift=0.01, min_cosine=0.999
)
"""Accepted difference of the checkpoint from itself on another machine or torch version."""


class RecipeJudge:
    """Holds the checkpoint's outputs for the test split, and for inputs of other sizes.

    Args:
        recipe: the recipe of the version.
        manifest: the manifest of the version.
        weights: its checkpoint, as safetensors.
        golden: its golden rows.

    Raises:
        TargetError: the recipe's code is missing, or no longer the code of the version.
        DataError: the data is missing, or is not the data of the version.
    """

    def __init__(
        self, recipe: Recipe, manifest: Manifest, weights: Path, golden: GoldenRows
    ) -> None:
        self._recipe, self._signature = recipe, manifest.signature
        self._weights, self._golden = weights, golden
        splits = load_splits(recipe)
        if (found := splits.sha256()) != manifest.lineage.data_sha256:
            raise DataError(
                f"the data of {recipe.data.name} has sha256 {found[:12]}… here, and "
                f"{manifest.model} {manifest.version} was made of "
                f"{manifest.lineage.data_sha256[:12]}…; verify it without the data, or where it is"
            )
        self._test, self._metric = splits.test, TaskMetric.of(recipe)
        # A Python step converts clients' inputs to the artifacts' inputs.
        step, inner = open_recipe_step(recipe), manifest.artifact_inputs()
        self._prepared: StepFunction = dict if step is None else step.run
        self._inner = self._signature.model_copy(update={"inputs": inner})
        model = trained_model(recipe, weights, [spec.name for spec in inner])
        run_model = module_runner(model, self._inner)

        def run(inputs: Mapping[str, Array]) -> dict[str, Array]:
            return run_model(self._prepared(inputs))

        size = self._signature.max_batch_size
        names = recipe.model.embeddings
        same = SAME_CHECKPOINT.model_copy(update={"embeddings": names})
        outputs = run_in_batches(run, golden.inputs, size)
        again = compare(golden.outputs, outputs, same.single_gates)
        if failure := again.failure(same):
            raise TargetError(
                f"{recipe.model.target} does not give the golden outputs of {manifest.model} "
                f"{manifest.version} any more ({failure}); check out the commit it was made at, "
                f"{manifest.lineage.git_commit or 'which was not recorded'}"
            )
        self._outputs = run_in_batches(run, self._test.inputs, size)
        self._sized = [(x, run(x)) for x in sized_inputs(golden.inputs, self._signature)]

    def judge(
        self, run: Run, artifact: Artifact
    ) -> tuple[list[Comparison], dict[str, float], str | None]:
        """Runs the test split through an artifact.

        Returns:
            Comparisons with the checkpoint; the task's metrics; and the reason to refuse the
            artifact, or None.
        """
        size = self._signature.max_batch_size
        gates = artifact.verification.tolerance.single_gates
        found = replay_sized(run, self._sized, gates)
        outputs = run_in_batches(run, self._test.inputs, size)
        found.append(compare_rows("the test split", self._outputs, outputs, gates))
        judged = self._signature.outputs[0].name
        expected, answers = self._outputs[judged], outputs[judged]
        labels, entry = self._test.labels, _entry(self._recipe, artifact.name)
        metrics = self._metric.metrics(answers, labels)
        refusal = None
        if entry is not None:
            before, after = (self._metric.measured(one, labels) for one in (expected, answers))
            if judged not in gates:
                refusal = too_far_off(entry, self._metric, labels, expected, answers)
            refusal = refusal or too_much_worse(before, after, entry, labels)
        return found, {n: v for n, v in metrics.items() if np.isfinite(v)}, refusal

    def departs_at(self, artifact: Artifact, path: Path) -> str | None:
        """Returns the point where a failed artifact departs from the checkpoint, if known.

        Args:
            artifact: its entry in the manifest.
            path: its file.
        """
        entry = _entry(self._recipe, artifact.name)
        if entry is None:
            return None
        case = Departed(
            recipe=self._recipe,
            weights=self._weights,
            entry=entry,
            path=path,
            signature=self._inner,
            tolerance=artifact.verification.tolerance,
            rows=[
                self._prepared(rows)
                for rows in (self._golden.inputs, *(x for x, _ in self._sized), self._test.inputs)
            ],
        )
        return departs_at(case)


def _entry(recipe: Recipe, name: str) -> Export | None:
    """Returns the recipe's entry of an artifact, for its limits, whatever its method."""
    entries: Iterable[Export] = recipe.listed_exports()
    if isinstance(recipe.export, AutoPart):
        entries = possible_entries(recipe.export.auto, ModelContents(qat=recipe.qat is not None))
    return next((entry for entry in entries if entry.name == name), None)
