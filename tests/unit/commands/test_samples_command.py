"""`flambeau samples`: reads and deletes samples that a gateway kept."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from flambeau.cli import app
from model_store.samples.payload_sample import (
    PayloadSample,
    SampledTensor,
    SampleLimits,
    Statistics,
    with_values,
)
from model_store.samples.payload_samples import SampleWriter
from model_store.storage.storage import Storage
from model_store.store import ModelStore
from tests.fixtures.store_versions import publish_in

START = datetime(2026, 11, 22, 8, tzinfo=UTC)
LIMITS = SampleLimits(kept_bytes=2**20, kept_for=timedelta(days=8))
FIGURES = Statistics(elements=20, not_finite=0, minimum=3, maximum=9, mean=5.5, deviation=2)
X = with_values("x", "FP32", np.array([[1, 2, 3.25]], np.float32))
NAME = SampledTensor(
    name="name", datatype="BYTES", shape=(1, 20), left_out="text", statistics=FIGURES
)


def sample(number: int, **changes: Any) -> PayloadSample:
    fields: dict[str, Any] = {
        "time": START + timedelta(minutes=number), "request_id": f"r{number}", "model": "digits",
        "version": 1, "protocol": "rest", "status": "200", "duration_ms": 1.25,
        "inputs": (X, NAME), "outputs": (),
    }  # fmt: skip
    return PayloadSample(**{**fields, **changes})


@pytest.fixture
def store(tmp_path: Path) -> str:
    """Returns the samples of two gateways, in interleaved order."""
    storage = Storage(str(tmp_path))
    for name, numbers in (("a", (0, 3)), ("b", (1, 2))):
        lines = [sample(n, version=1 if n < 3 else 2).to_line() for n in numbers]
        SampleWriter(storage, name * 8).append("digits", lines, LIMITS)
    return str(tmp_path)


def run(store: str, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["samples", *arguments, "--store", store])


def said(store: str, *arguments: str) -> list[str]:
    result = run(store, *arguments)
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


def listed(store: str, *arguments: str) -> list[str]:
    return [line.split()[2] for line in said(store, "list", "digits", *arguments)[1:]]


def test_samples_are_listed_by_time(store: str) -> None:
    head, first, *_ = said(store, "list", "digits")
    assert head.split() == ["TIME", "REQUEST", "VERSION", "STATUS", "MS", "INPUTS", "OUTPUTS"]
    assert first.split()[2:] == ["r0", "1", "200", "1.2", "x[1,3]", "name[1,20]", "-"]
    assert listed(store) == ["r0", "r1", "r2", "r3"]
    assert listed(store, "--last=2") == ["r2", "r3"]
    assert listed(store, "--version=2") == ["r3"]


def test_as_json_they_are_what_is_kept(store: str) -> None:
    lines = said(store, "list", "digits", "--json", "--last=1")
    assert [line.encode() + b"\n" for line in lines] == [sample(3, version=2).to_line()]


def test_where_there_are_none_it_says_so(store: str) -> None:
    assert said(store, "list", "digits", "--version=9") == [
        f"no samples of 'digits' version 9 in {store}"
    ]
    as_json = run(store, "list", "digits", "--version=9", "--json")
    assert (as_json.exit_code, as_json.stdout) == (0, "")
    assert as_json.stderr == f"no samples of 'digits' version 9 in {store}\n"


def test_of_a_name_that_is_no_model_it_fails(store: str, tmp_path: Path) -> None:
    assert run(store, "list", "digts").exit_code == 0, "a store for samples alone has no models"
    publish_in(ModelStore(store), tmp_path / "draft")
    result = run(store, "list", "digts")
    assert (result.exit_code, result.stdout) == (1, "")
    told = f"error: no samples of 'digts' in {store}, which has no such model"
    assert result.stderr == f"{told} (did you mean 'digits'?)\n"


def test_a_request_is_shown_with_its_values(store: str) -> None:
    lines = said(store, "show", "digits", "r1")
    assert "input x  FP32 [1,3]" in lines
    assert "3.25" in lines[lines.index("input x  FP32 [1,3]") + 1]
    assert "input name  BYTES [1,20]  values left out: text" in lines
    assert "  elements 20, not_finite 0, minimum 3, maximum 9, mean 5.5, deviation 2" in lines
    result = run(store, "show", "digits", "r9")
    assert result.exit_code == 1
    assert "no sample of 'digits' has the request id 'r9'" in result.output


def test_those_of_a_request_go_and_then_all(store: str) -> None:
    assert said(store, "delete", "digits", "--request-id=r1")[0].startswith("deleted 1 samples")
    assert listed(store) == ["r0", "r2", "r3"]
    assert said(store, "delete", "digits")[0].endswith("(2 files)")
    assert listed(store) == []


def test_a_name_that_is_no_model_is_refused(store: str) -> None:
    result = run(store, "delete", "../digits")
    assert result.exit_code == 2
    assert "model name '../digits' is not allowed" in result.output


def test_deletion_for_a_misspelt_model_fails(store: str, tmp_path: Path) -> None:
    publish_in(ModelStore(store), tmp_path / "draft", model="digits")
    failed = run(store, "delete", "digts")
    assert failed.exit_code == 1
    assert "no such model (did you mean 'digits'?)" in failed.output
