"""Spreads of golden answers: where rollouts and shadows begin, and what is judged by them."""

import itertools
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from flambeau.commands.text.rollouts import shadow_lines, status_lines
from flambeau.protocol.signature import Signature, TensorSpec
from flambeau.protocol.tensors import Array, object_array
from model_store.errors import StoreError
from model_store.golden import GoldenRows
from model_store.manifest import Golden
from model_store.rollouts import rollout_store
from model_store.rollouts.requests import RolloutRequest, ShadowRequest
from model_store.rollouts.status import rollout_status
from model_store.rollouts.traffic import MAX_SPREADS, Rollout
from model_store.store import ModelStore
from services.gateway.traffic.answer_comparison import compared, task_of
from services.rollouts.evidence.evidence import Evidence
from services.rollouts.evidence.judge import judge
from services.rollouts.evidence.verdict import Verdict
from services.rollouts.reports import shadow_report
from tests.fixtures.signatures import one_to_one
from tests.fixtures.store_versions import draft_in, entry_in

KELVIN = one_to_one((1,), rows=64, names=("x", "y"))
ROWS = 64
DRAWN = np.random.default_rng(7)
F = DRAWN.uniform(-1, 1, (ROWS, 1)).astype(np.float32)
TEMPERATURES = 290 + 5 * F
SPREAD = 5 * float(F.std())


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(str(tmp_path / "store"))


def publish(
    store: ModelStore, folder: Path, signature: Signature, outputs: dict[str, Array]
) -> None:
    """Publishes versions 1, in production, and 2 of m, with the same golden rows."""
    rows = GoldenRows({"x": F}, outputs)
    for number in (1, 2):
        draft = draft_in(folder, "m", str(number).encode(), signature=signature)
        golden = Golden(file=entry_in(folder, "golden.safetensors", rows.to_bytes()), rows=ROWS)
        lineage = draft.lineage.model_copy(update={"metrics": {}})
        changes = {"golden": golden, "lineage": lineage}
        store.publish(draft.model_copy(update=changes), folder)
    store.promote("m", 1)


def started(store: ModelStore, **wanted: object) -> Rollout:
    request = RolloutRequest.model_validate({"version": 2, **wanted})
    rollout = rollout_store.start_rollout(store, "m", request, "ada").traffic.rollout
    assert rollout is not None
    return rollout


def judged(rollout: Rollout, candidate: npt.NDArray[np.float32]) -> Verdict:
    """Returns the verdict on 500 mirrored pairs of the baseline's answers and others."""
    task, evidence = task_of(None, KELVIN, rollout.spreads), Evidence()
    for one, other in itertools.islice(
        itertools.cycle(zip(TEMPERATURES, candidate, strict=True)), 500
    ):
        pair = compared({"y": one[None]}, {"y": other[None]}, task)
        evidence.count_pair(pair.disagreement)
    return judge(evidence, rollout.guards)


def test_regressor_with_the_wrong_sign_is_rolled_back(store: ModelStore, folder: Path) -> None:
    publish(store, folder, KELVIN, {"y": TEMPERATURES})
    rollout = started(store)
    assert rollout.spreads == {"y": pytest.approx(SPREAD)}
    shown = [line.split() for line in status_lines(rollout_status(store, "m"))]
    assert ["spread", "y", f"{SPREAD:.4g}"] in shown
    assert rollout.guards.disagreement is not None
    assert rollout.guards.disagreement.limit == 0.01
    wrong = judged(rollout, 290 - 5 * F)
    assert (wrong.decision, wrong.guard) == ("roll_back", "disagreement")
    finding = next(one for one in wrong.findings if one.guard == "disagreement")
    assert (finding.figures["mean"] or 0) > 0.35


def test_change_by_a_thousandth_of_the_spread_is_kept(store: ModelStore, folder: Path) -> None:
    publish(store, folder, KELVIN, {"y": TEMPERATURES})
    near = judged(started(store), TEMPERATURES + np.float32(0.001 * SPREAD))
    finding = next(one for one in near.findings if one.guard == "disagreement")
    assert finding.state != "broken"
    assert (finding.figures["mean"] or 0) < 0.002


def test_shadow_has_the_spreads_of_the_live_version(store: ModelStore, folder: Path) -> None:
    publish(store, folder, KELVIN, {"y": TEMPERATURES})
    moved = rollout_store.start_shadow(store, "m", ShadowRequest(version=2))
    assert moved.traffic.shadow is not None
    assert moved.traffic.shadow.spreads == {"y": pytest.approx(SPREAD)}
    assert f"y {SPREAD:.4g}" in "\n".join(shadow_lines(shadow_report(store, "m")))


@pytest.mark.parametrize(
    "wanted",
    [
        {"mirrored": 0},
        {"guards": {"disagreement": None}},
        {"guards": {"outputs": {"kind": "scores"}}},
    ],
)
def test_golden_rows_are_read_where_numbers_are_compared(
    store: ModelStore, folder: Path, wanted: dict[str, object]
) -> None:
    publish(store, folder, KELVIN, {"y": TEMPERATURES})
    golden = Path(store.url) / "m/1/golden.safetensors"
    golden.chmod(0o600)
    golden.write_bytes(b"damaged")
    with pytest.raises(StoreError, match=r"golden\.safetensors"):
        started(store)
    assert started(store, **wanted).spreads == {}


def outputs_of(*specs: TensorSpec) -> Signature:
    return KELVIN.model_copy(update={"outputs": specs})


def spec(name: str, datatype: str = "FP32", shape: tuple[int, ...] = (-1, 1)) -> TensorSpec:
    return TensorSpec(name=name, datatype=datatype, shape=shape)


def test_outputs_without_a_scale_have_no_spread(store: ModelStore, folder: Path) -> None:
    texts = object_array([b"a"] * ROWS).reshape(ROWS, 1)
    signature = outputs_of(
        spec("y"), spec("whole", "INT64"), spec("texts", "BYTES"),
        spec("varying", "FP32", (-1, -1)), spec("constant"), spec("nan"),
        TensorSpec(name="beside", datatype="FP32", shape=(3,), batch_axis=None),
        TensorSpec(name="single", datatype="FP32", shape=(1, 2), batch_axis=None),
        TensorSpec(name="second", datatype="FP32", shape=(2, -1), batch_axis=1),
    )  # fmt: skip
    rng = np.random.default_rng(3)
    found: dict[str, Array] = {
        "y": TEMPERATURES, "whole": np.arange(ROWS).reshape(ROWS, 1), "texts": texts,
        "varying": F, "constant": np.full((ROWS, 1), 290.1, np.float32),
        "nan": np.where(F > 0.9, np.float32("nan"), F),
        "beside": rng.random((ROWS, 3), np.float32),
        "single": np.repeat(F[:, :, None], 2, axis=2),
        "second": rng.random((ROWS, 2), np.float32),
    }  # fmt: skip
    publish(store, folder, signature, found)
    assert started(store).spreads == {
        "y": pytest.approx(SPREAD),
        "single": pytest.approx(SPREAD / 5 * 2**0.5),
    }


def test_further_outputs_have_no_spread(store: ModelStore, folder: Path) -> None:
    names = [f"y{number}" for number in range(MAX_SPREADS + 1)]
    publish(store, folder, outputs_of(*map(spec, names)), dict.fromkeys(names, TEMPERATURES))
    assert list(started(store).spreads) == names[:MAX_SPREADS]


def test_version_with_names_of_classes_has_no_spread(store: ModelStore, folder: Path) -> None:
    answers = np.concatenate([F, -F], axis=1)
    signature = outputs_of(spec("y", shape=(-1, 2))).model_copy(
        update={"labels": {"y": ("a", "b")}}
    )
    publish(store, folder, signature, {"y": answers})
    assert started(store).spreads == {}
    moved = rollout_store.start_shadow(store, "m", ShadowRequest(version=2))
    assert moved.traffic.shadow is not None
    assert moved.traffic.shadow.spreads == {}
