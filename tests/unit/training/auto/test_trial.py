"""Trials: one candidate after the other within a budget; only worthwhile ones are kept."""

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors.torch import save_model

from tests.unit.training.auto.test_pareto_front import faster, measured
from tests.unit.training.recipes import recipe
from training.auto.attempts import folder_of, lay_out, prove_auto
from training.auto.candidates import Candidate
from training.auto.trial import Trial, run_trial
from training.auto.trial_table import TrialLines, open_trial_table
from training.datasets import Split, Splits
from training.loop.loop import Trained
from training.loop.train_state import TrainState
from training.network.model import build_model, try_model
from training.recipe.kinds.aoti_kind import AotiExport
from training.recipe.kinds.export_kinds import Export
from training.recipe.kinds.onnx_kind import OnnxExport, OnnxInt8Export
from training.recipe.kinds.openvino_kind import OpenVinoExport, OpenVinoInt8Export
from training.recipe.kinds.pt2_kind import Pt2Export
from training.recipe.parts.auto_export import AutoExport
from training.reporting.report import ArtifactReport, AutoReport
from training.verification.verify import reference


class Attempts:
    """Attempts that take as long as they are told, on a clock of their own."""

    def __init__(self, takes_s: dict[str, float], reports: dict[str, ArtifactReport]) -> None:
        self.now = 100.0
        self.limits: dict[str, float | None] = {}
        self.timed: list[str] = []
        self.again: dict[str, dict[int, float]] = {}
        self._takes_s, self._reports = takes_s, reports

    def prove(self, candidate: Candidate, time_limit_s: float | None) -> ArtifactReport:
        name = candidate.entry.name
        self.limits[name] = time_limit_s
        takes_s = self._takes_s.get(name, 1.0)
        if time_limit_s is not None and takes_s > time_limit_s:
            self.now += time_limit_s + 0.01
            words = f"export failed: it took longer than {time_limit_s:g} s"
            return measured(name, refusal=words, latency_ms={})
        self.now += takes_s
        return self._reports.get(name, measured(name))

    def time_again(self, candidate: Candidate) -> dict[int, float]:
        self.timed.append(candidate.entry.name)
        return self.again.get(candidate.entry.name, {})

    def trial(self, *entries: Export, budget_s: float, time_limit_s: float = 600.0) -> Trial:
        offered = [Candidate(entry, None) for entry in entries]
        table = TrialLines(Console(file=io.StringIO()))
        return run_trial(offered, self, budget_s, time_limit_s, table, clock=lambda: self.now)


def test_no_candidate_is_begun_once_the_budget_is_spent() -> None:
    attempts = Attempts({"onnx": 6.0, "openvino": 5.0}, {})
    found = attempts.trial(OnnxExport(), OpenVinoExport(), Pt2Export(), budget_s=11)
    assert attempts.limits == {"onnx": None, "openvino": 5.0}
    assert [(one.name, one.took_s) for one in found.artifacts()] == [("onnx", 6), ("openvino", 5)]
    (left_out,) = found.auto.not_tried
    assert left_out.name == "pt2"
    assert left_out.reason.startswith("the budget of 11 s was spent; raise export.auto.budget_s")
    assert (found.auto.budget_s, found.auto.spent_s) == (11, 11)


def test_what_is_left_of_the_budget_ends_an_attempt() -> None:
    attempts = Attempts({"aoti": 50.0}, {})
    found = attempts.trial(OnnxExport(), AotiExport(), Pt2Export(), budget_s=21)
    _, aoti = found.artifacts()
    assert attempts.limits["aoti"] == 20
    assert aoti.refusal == (
        "export failed: it took longer than 20 s; that was all that was left of "
        "export.auto.budget_s"
    )


def test_an_attempt_has_no_more_than_its_own_limit() -> None:
    attempts = Attempts({"aoti": 50.0}, {})
    found = attempts.trial(OnnxExport(), AotiExport(), budget_s=900, time_limit_s=30)
    assert attempts.limits["aoti"] == 30
    assert found.artifacts()[1].refusal == "export failed: it took longer than 30 s"


def test_the_first_has_all_its_time_so_that_something_is_published() -> None:
    attempts = Attempts({"onnx": 40.0}, {})
    found = attempts.trial(OnnxExport(), Pt2Export(), budget_s=0.1)
    assert [one.refusal for one in found.artifacts()] == [None]
    assert [one.name for one in found.auto.not_tried] == ["pt2"]


def test_a_candidate_that_fails_costs_the_others_nothing() -> None:
    died = measured("openvino", refusal="does not run: its process was ended by SIGSEGV")
    quick = measured("onnx-int8", latency_ms=faster(0.3))
    attempts = Attempts({}, {"openvino": died, "onnx-int8": quick})
    entries = (OnnxExport(), OpenVinoExport(), OnnxInt8Export(), Pt2Export())
    found = attempts.trial(*entries, budget_s=60)
    verdicts = {one.name: one.refusal or one.dropped for one in found.artifacts()}
    assert verdicts == {
        "onnx": None,
        "openvino": died.refusal,
        "onnx-int8": None,
        "pt2": "no better than onnx in anything, which is simpler",
    }


def test_where_all_are_refused_nothing_is_kept() -> None:
    refused = {name: measured(name, refusal="too far") for name in ("onnx", "pt2")}
    found = Attempts({}, refused).trial(OnnxExport(), Pt2Export(), budget_s=60)
    assert [one.refusal for one in found.artifacts()] == ["too far", "too far"]


def test_what_is_left_out_is_reported_and_not_tried() -> None:
    attempts = Attempts({}, {})
    offered = [
        Candidate(OnnxExport(), None),
        Candidate(OnnxInt8Export(method="dynamic"), "it has convolutions"),
    ]
    table = TrialLines(Console(file=io.StringIO()))
    found = run_trial(offered, attempts, 60, 60, table, clock=lambda: attempts.now)
    assert list(attempts.limits) == ["onnx"]
    (left_out,) = found.auto.not_tried
    assert (left_out.method, left_out.reason) == ("dynamic", "it has convolutions")


PERCEPTRON = {"target": "tests.unit.training.small_networks:Perceptron"}
ROWS = Split(
    {"x": np.random.default_rng(0).normal(size=(80, 4, 6)).astype(np.float32)},
    np.zeros(80, np.int64),
)
SEQUENCES = Splits(ROWS, ROWS, ROWS)


@pytest.fixture
def trained(tmp_path: Path) -> Trained:
    torch.manual_seed(0)
    model = build_model(recipe(model=PERCEPTRON)).eval()
    weights = tmp_path / "weights.safetensors"
    save_model(model, str(weights))
    signature = try_model(model, SEQUENCES, recipe())
    return Trained(model=model, weights=weights, signature=signature, state=TrainState())


def test_a_real_trial_leaves_the_files_of_what_it_keeps(trained: Trained, tmp_path: Path) -> None:
    """The last two write the same file."""
    auto = AutoExport.model_validate(
        {
            "kinds": ["onnx"],
            "precisions": ["fp32", "int8"],  # others depend on the processor
            "calibration_rows": 64,
            "tolerance": {"int8": {"max_abs_difference": 10, "max_probability_shift": 1}},
        }
    )
    wanted, folder, screen = recipe(model=PERCEPTRON), tmp_path / "version", io.StringIO()
    folder.mkdir()
    expected, _ = reference(trained, SEQUENCES.test)
    console = Console(file=screen)
    found = prove_auto(wanted, auto, trained, SEQUENCES, expected, folder, console)
    tried = [(one.name, one.method) for one in found.artifacts()]
    assert tried[0] == ("onnx", None)
    assert sorted(tried[1:], key=str) == [("onnx-int8", "dynamic"), ("onnx-int8", "static")]
    for one in found.artifacts():
        assert one.refusal is None
        assert one.peak_memory_bytes is not None
        assert 10**5 < one.peak_memory_bytes < 10**9
    kept = [one for one in found.artifacts() if one.dropped is None]
    assert {path.name for path in folder.iterdir()} == {one.file for one in kept}
    for one in kept:
        assert one.size_bytes == (folder / one.file).stat().st_size
    assert "candidate onnx-int8 dynamic  parity" in screen.getvalue()


def test_both_files_of_a_kind_move_and_the_others_are_deleted(tmp_path: Path) -> None:
    tries, kept, lost = tmp_path / "tries", OpenVinoExport(), OpenVinoInt8Export()
    tried = []
    for entry, dropped in ((kept, None), (lost, "dominated")):
        candidate = Candidate(entry, None)
        folder_of(candidate, tries).mkdir(parents=True)
        names = {"file": entry.file, "weights_file": entry.weights_file}
        for name in names.values():
            (folder_of(candidate, tries) / str(name)).write_text(entry.name)
        tried.append((candidate, measured(entry.name, dropped=dropped, **names)))
    auto = AutoReport(budget_s=1, spent_s=1, not_tried=())
    lay_out(Trial(tuple(tried), auto), tries, tmp_path)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "model.xml": "openvino",
        "model.bin": "openvino",
    }


def test_what_is_proven_is_timed_again_and_the_lower_figure_counts() -> None:
    """Without the second time, the exact one of the two would have been no faster."""
    attempts = Attempts({}, {"aoti": measured("aoti", refusal="too far")})
    attempts.again = {"openvino": faster(0.5), "pt2": faster(1.5)}
    entries = (OnnxExport(), OpenVinoExport(), AotiExport(), Pt2Export())
    found = {one.name: one for one in attempts.trial(*entries, budget_s=60).artifacts()}
    assert attempts.timed == ["pt2", "openvino", "onnx"]
    assert found["openvino"].latency_ms == faster(0.5)
    assert found["pt2"].latency_ms == faster(1)
    assert [name for name, one in found.items() if one.refusal or one.dropped] == [
        "onnx",
        "aoti",
        "pt2",
    ]


def test_lines_say_each_thing_once() -> None:
    screen = io.StringIO()
    with open_trial_table(Console(file=screen), ["onnx", "pt2", "aoti"]) as table:
        table.state("onnx", "exporting")
        table.done("onnx", measured())
        table.done("onnx", measured(latency_ms=faster(0.9)))
        table.done("pt2", measured("pt2", refusal="too far", latency_ms={}))
        table.done("onnx", measured(dropped="dominated by aoti"))
        table.left_out("aoti", "there is no C++ compiler")
    assert screen.getvalue().splitlines() == [
        "export: auto  candidate onnx  parity 2.4e-07  accuracy 95.0 %  batch 1 1.0 ms  "
        "batch 32 10.0 ms  memory 104.9 MB  verdict verified",
        "export: auto  candidate pt2  parity 2.4e-07  accuracy 95.0 %  memory 104.9 MB  "
        "verdict refused: too far",
        "export: auto  candidate onnx  verdict dropped: dominated by aoti",
        "export: auto  candidate aoti  left out: there is no C++ compiler",
    ]


def test_a_narrow_terminal_shows_what_became_of_each_candidate() -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=80)
    with open_trial_table(console, ["onnx fp32", "torchscript fp32"]) as table:
        table.done("onnx fp32", measured())
        table.done("torchscript fp32", measured("torchscript", refusal="too far off " * 20))
    last = screen.getvalue().rsplit("candidate", 1)[1]
    assert "verdict" in last
    assert "torchscript fp32" in last
    assert "refused: too far o…" in last
    assert "95.0 %" in last


def test_a_terminal_shows_one_table_that_fills() -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=140)
    with open_trial_table(console, ["onnx", "pt2"]) as table:
        table.state("onnx", "exporting")
        assert "exporting" in screen.getvalue()
        assert "waiting" in screen.getvalue()
        table.done("onnx", measured())
        table.done("pt2", measured("pt2", refusal="too far", latency_ms={}))
    last = screen.getvalue().rsplit("candidate", 1)[1]
    assert "104.9 MB" in last
    assert "refused: too far" in last
    assert "exporting" not in last
