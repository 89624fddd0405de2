"""The ports of the training service in TLS."""

import asyncio
import json
import ssl
import urllib.request
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from flambeau.channel import Tls
from flambeau.training_jobs import TrainingClient
from services.telemetry.metrics import TlsMetrics
from services.tls import open_certificates
from services.trainer.__main__ import main
from services.trainer.metrics import TrainerMetrics
from services.trainer.server import serve_api
from services.trainer.stores.sqlite_store import SqliteJobStore
from services.trainer.training_job_service import TrainingJobService
from tests.fixtures.certificates import Authority
from tests.fixtures.training_jobs import config


async def test_both_ports_speak_it(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("server")
    given = config(
        tmp_path,
        http_port=0,
        grpc_port=0,
        tls_certificate_file=str(pair.certificate),
        tls_key_file=str(pair.key),
    )
    store = SqliteJobStore(Path(given.jobs), 1000)
    certificates = open_certificates(given, TlsMetrics(CollectorRegistry()))
    assert certificates is not None
    async with serve_api(
        given, TrainingJobService(store, given), None, certificates, TrainerMetrics("")
    ) as (
        http,
        grpc,
    ):

        def talk() -> None:
            trusted = ssl.create_default_context(cafile=str(authority.file))
            url = f"https://127.0.0.1:{http}/v1/jobs"
            with urllib.request.urlopen(url, timeout=30, context=trusted) as answer:
                assert json.loads(answer.read()) == {"jobs": []}
            with TrainingClient(f"127.0.0.1:{grpc}", tls=Tls(ca_file=authority.file)) as client:
                assert client.list() == []

        await asyncio.to_thread(talk)
    await store.close()


def test_a_bad_pair_stops_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    authority = Authority(tmp_path)
    pair, other = authority.issue("server"), authority.issue("other")
    arguments = {"jobs": tmp_path / "jobs.db", "runs-dir": tmp_path / "runs", "metrics-port": 0}
    arguments |= {"tls-certificate-file": pair.certificate, "tls-key-file": other.key}
    monkeypatch.setattr("services.trainer.server.configure_logs", lambda level: None)
    assert main([f"--{name}={x}" for name, x in arguments.items()]) == 2
    assert "is not the key of tls_certificate_file" in capsys.readouterr().err
