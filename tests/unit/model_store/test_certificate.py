"""Texts and rules of a certificate."""

from datetime import UTC, datetime
from typing import Any

import pytest

from model_store.certificates.certificate import (
    ArtifactResult,
    Certificate,
    Environment,
    ReplayResult,
)
from model_store.tolerance import Tolerance


def environment(**fields: Any) -> Environment:
    of_a_cpu = {
        "machine": "x86_64 Linux",
        "cpu_model": "Some CPU",
        "cpu_features": ("avx2",),
        "device": "cpu",
        "threads": 2,
        "python": "3.11.7",
        "libraries": {"torch": "2.1.0", "onnxruntime": "1.20.0"},
    }
    return Environment(**{**of_a_cpu, **fields})


GPU = {"device": "cuda", "device_name": "Some GPU", "driver": "550.1"}


@pytest.mark.parametrize(
    ("fields", "start"),
    [
        ({}, "Some CPU, 2 threads"),
        ({"threads": 1}, "Some CPU, 1 thread"),
        (GPU, "Some GPU, driver 550.1, 2 threads"),
    ],
)
def test_summary_names_the_device_its_threads_and_the_runtimes(
    fields: dict[str, Any], start: str
) -> None:
    summary = environment(**fields).summary()
    assert summary == f"{start}, python 3.11.7, onnxruntime 1.20.0, torch 2.1.0"


def test_the_order_of_the_libraries_changes_neither_bytes_nor_digest() -> None:
    libraries = {"torch": "2.1.0", "onnxruntime": "1.20.0"}
    environments = [
        environment(libraries=dict(order))
        for order in (libraries.items(), reversed(libraries.items()))
    ]
    documents = {
        Certificate(
            model="m",
            version=1,
            manifest_sha256="0" * 64,
            flambeau="1.0.0",
            made_at=datetime(2026, 1, 1, tzinfo=UTC),
            environment=one,
            artifacts=(),
        ).to_json()
        for one in environments
    }
    assert len(documents) == 1
    assert len({one.digest() for one in environments}) == 1


EXACT = Tolerance(max_abs_difference=0.0, min_agreement=1.0)


def result(*replays: tuple[float | None, float]) -> ArtifactResult:
    found = [
        ReplayResult(
            where="rows",
            max_abs_difference=difference,
            agreement=agreement,
            max_probability_shift=0,
        )
        for difference, agreement in replays
    ]
    return ArtifactResult(artifact="onnx", outcome="passed", tolerance=EXACT, replays=tuple(found))


@pytest.mark.parametrize(
    ("replays", "worst"),
    [
        ([], (None, None)),
        ([(0.1, 1.0), (0.3, 0.5), (0.2, 0.75)], (0.3, 0.5)),
        ([(0.1, 1.0), (None, 0.5)], (None, 0.5)),
        ([(None, 1.0)], (None, 1.0)),
    ],
)
def test_worst_is_of_all_replays(
    replays: list[tuple[float | None, float]], worst: tuple[float | None, float | None]
) -> None:
    assert result(*replays).worst() == worst
