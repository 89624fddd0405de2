"""An alert end to end: a counter, Prometheus, Alertmanager, a webhook."""

import json
import queue
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from prometheus_client import start_http_server

from flambeau.monitoring.runbooks import url_of_runbook
from services.telemetry.metrics import Metrics
from tests.dashboards.fleet import RULES
from tests.fixtures.http_listener import QuietHandler, http_listener
from tests.fixtures.prometheus_process import (
    FREE_ADDRESS,
    program,
    running,
    running_prometheus,
)

CONFIG = RULES.parents[2] / "alertmanager/alertmanager.yml"
WAIT_S = 60.0


@contextmanager
def webhook() -> Iterator[tuple[str, "queue.Queue[tuple[str, Any]]"]]:
    """Yields its host:port, and the received notifications: path and document."""
    told: queue.Queue[tuple[str, Any]] = queue.Queue()

    class Handler(QuietHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            told.put((self.path, json.loads(body)))
            self.send_response(200)
            self.end_headers()

    with http_listener(Handler) as url:
        yield url.removeprefix("http://"), told


@contextmanager
def running_alertmanager(folder: Path, receiver: str) -> Iterator[str]:
    """Runs it on the deployed configuration, with its receivers filled in."""
    config = yaml.safe_load(CONFIG.read_text())
    config["route"]["group_wait"] = "0s"
    for one in config["receivers"]:
        assert one.keys() == {"name"}, "nobody is told until somebody says who"
        one["webhook_configs"] = [{"url": f"http://{receiver}/{one['name']}"}]
    (folder / "alertmanager.yml").write_text(yaml.safe_dump(config))
    command = [
        program("prometheus-alertmanager"), f"--config.file={folder / 'alertmanager.yml'}",
        f"--storage.path={folder / 'alertmanager'}", f"--web.listen-address={FREE_ADDRESS}",
        "--cluster.listen-address=",
    ]  # fmt: skip
    with running(command) as address:
        yield address


@contextmanager
def scraped(metrics: Metrics) -> Iterator[int]:
    server, thread = start_http_server(0, "127.0.0.1", metrics.registry)
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_somebody_is_told(tmp_path: Path) -> None:
    """Urgent alerts reach one receiver, others another."""
    program("prometheus")
    metrics = Metrics("test")
    # As if a version failed when first read: no scrape has seen these at 0.
    metrics.failed_verifications.labels("digits", "3").inc()
    metrics.dead_letters.labels("digits", "3").inc()
    with (
        webhook() as (receiver, told),
        running_alertmanager(tmp_path, receiver) as alertmanager,
        scraped(metrics) as port,
        running_prometheus(
            tmp_path / "prometheus", {"flambeau-worker": f"127.0.0.1:{port}"}, RULES, alertmanager
        ),
    ):
        heard: dict[str, Any] = {}
        while len(heard) < 2:
            path, document = told.get(timeout=WAIT_S)
            (sent,) = document["alerts"]
            assert sent["status"] == "firing"
            heard[path] = (sent["labels"], sent["annotations"])
    for path, alert in (
        ("/pages", "FlambeauVerificationFailed"), ("/tickets", "FlambeauDeadLetters"),
    ):  # fmt: skip
        labels, annotations = heard[path]
        assert (labels["alertname"], labels["model"]) == (alert, "digits")
        assert "digits version 3" in annotations["summary"]
        assert annotations["runbook_url"] == url_of_runbook(alert)
