"""Formats certificates for `flambeau verify`. In: certificates. Out: lines."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from flambeau.commands.text.gates import gate_lines, limits_cells
from flambeau.commands.text.tables import UNKNOWN, columns, latency_text, metric_text

if TYPE_CHECKING:
    from model_store.certificates.certificate import ArtifactResult, Certificate

LATENCY_COLUMNS = (1, 8, 32)


def certificate_lines(certificate: "Certificate") -> list[str]:
    """Returns the environment, and a line for every artifact that ends with its verdict."""
    metrics = sorted({name for one in certificate.artifacts for name in one.metrics})
    rows = [
        [
            *("ARTIFACT", "DIFFERENCE", "ALLOWED", "AGREEMENT", "AT LEAST"),
            *(name.upper() for name in metrics),
            *(f"BATCH {rows}" for rows in LATENCY_COLUMNS),
            "VERDICT",
        ]
    ]
    rows += [_cells(result, metrics) for result in certificate.artifacts]
    environment = certificate.environment
    return [
        f"{certificate.model} {certificate.version} on {environment.summary()}",
        f"environment {environment.digest()}, {_moment(certificate)}",
        "",
        *columns(rows),
        *gate_lines([(a.artifact, a.tolerance, a.worst_gates()) for a in certificate.artifacts]),
    ]


def list_lines(certificates: Sequence["Certificate"]) -> list[str]:
    """Returns one line per certificate."""
    rows = [["ENVIRONMENT", "WHEN", "VERDICT", "MACHINE"]]
    rows += [
        [one.environment.digest(), _moment(one), _verdict(one), one.environment.summary()]
        for one in certificates
    ]
    return columns(rows)


def _cells(result: "ArtifactResult", metrics: Sequence[str]) -> list[str]:
    difference, agreement = result.worst()
    reason = f": {result.reason}" if result.reason else ""
    departs = f" (departs at {result.departs_at})" if result.departs_at else ""
    return [
        result.artifact,
        UNKNOWN if difference is None else f"{difference:.2g}",
        *limits_cells(result.tolerance, agreement),
        *(metric_text(name, result.metrics.get(name)) for name in metrics),
        *(latency_text(result.latency_ms.get(rows)) for rows in LATENCY_COLUMNS),
        f"{'not run here' if result.outcome == 'not run' else result.outcome}{reason}{departs}",
    ]


def _verdict(certificate: "Certificate") -> str:
    failed = [one.artifact for one in certificate.artifacts if one.outcome == "failed"]
    passed = sum(one.outcome == "passed" for one in certificate.artifacts)
    proven = f"{passed} of {len(certificate.artifacts)} passed"
    return f"{proven}, failed: {', '.join(failed)}" if failed else proven


def _moment(certificate: "Certificate") -> str:
    return certificate.made_at.strftime("%Y-%m-%d %H:%M:%S %Z")
