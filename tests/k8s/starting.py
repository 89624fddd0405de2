"""The overlays' pods as local processes: their images' locks, their arguments, their environment.

Only location-dependent parts are changed: addresses (all are 127.0.0.1), ports (any free one),
paths (below a folder of the test), Redis, the bucket, and third-party URLs.
"""

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.fixtures.certificates import Authority
from tests.fixtures.credentials import key_set, keys_text
from tests.fixtures.servers import Lines
from tests.images.lock_environment import installed, lock_of
from tests.k8s.rendering import KUBERNETES, Workload, arguments, render

START_TIMEOUT_S = 240.0
STOP_TIMEOUT_S = 120.0
MODULES = {"gateway": "services.gateway", "inference": "services.inference",
           "registry": "services.registry_server", "trainer": "services.trainer"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The environment of the processes."""

    folder: Path
    """Folder in place of `/`; with the files that Secrets and ConfigMaps mount, and a store."""
    queue: str
    store: str
    """URL of a bucket, configured by AWS_*."""
    site: Path
    """Our own packages, as the images install them."""


def fill(folder: Path) -> None:
    """Writes the files that pods mount: keys, certificates, a webhook's secret, key set, recipe."""
    mounted = folder / "etc/flambeau"
    for name in ("access", "account", "recipe", "registry", "tls", "webhooks"):
        (mounted / name).mkdir(parents=True)
    for name in ("tmp", "var/lib/flambeau/runs", "var/lib/flambeau/uploads", "var/cache/flambeau"):
        (folder / name).mkdir(parents=True)
    (mounted / "access/api-keys.yaml").write_text(keys_text("infer", "train"))
    (mounted / "webhooks/secret").write_text("a secret of thirty-two characters")
    (mounted / "account/namespace").write_text("models")
    (mounted / "registry/token").write_text("a key")
    (mounted / "jwks.json").write_bytes(key_set())
    authority = Authority(mounted / "tls")
    pair = authority.issue("tls")
    pair.key.rename(mounted / "tls/tls.key")
    authority.file.rename(mounted / "tls/ca.crt")
    recipe = KUBERNETES / "components/train-job/recipe.yaml"
    (mounted / "recipe/recipe.yaml").write_text(recipe.read_text())


def pod_of(overlay: str, name: str) -> Workload:
    """Returns a pod of an overlay by its name."""
    (found,) = (pod for pod in workloads_of(overlay) if pod.name == name)
    return found


def workloads_of(overlay: str) -> list[Workload]:
    """Returns our workloads in an overlay."""
    from tests.k8s.rendering import workloads

    found = workloads(render(f"overlays/{overlay}"))
    return [pod for pod in found if pod.container["image"].startswith("flambeau/")]


@contextmanager
def started(
    overlay: str, pod: Workload, around: Surroundings, image: str = ""
) -> Iterator[tuple["subprocess.Popen[str]", Lines]]:
    """Starts a pod's process in its image's environment; kills it in the end.

    Args:
        overlay: overlay of the pod.
        pod: name of the pod.
        around: environment of the process.
        image: replacement for its own image.
    """
    python = str(installed(lock_of(image or pod.container["image"])))
    told = [_here(argument, around) for argument in arguments(pod, render(f"overlays/{overlay}"))]
    process = subprocess.Popen(
        [python, *_program(pod, around), *told],
        cwd=around.folder / "tmp",
        env=_environment(pod, around),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    log = Lines(process.stdout)
    try:
        yield process, log
    finally:
        process.kill()
        process.wait()
        log.join()


def assert_starts_and_stops(
    overlay: str, pod: Workload, around: Surroundings, image: str = ""
) -> None:
    """Asserts that it listens and serves the store's models, and that SIGTERM ends it with 0."""
    with started(overlay, pod, around, image) as (process, log):
        # Servers log their ports once they are ready; `flambeau serve` prints them.
        log.wait_for(
            lambda line: (
                ('"ready"' in line and '"metrics_port"' in line) or line.startswith("  metrics")
            ),
            START_TIMEOUT_S,
        )
        process.send_signal(signal.SIGTERM)
        assert process.wait(STOP_TIMEOUT_S) == 0, "\n".join(log.all())


def _program(pod: Workload, around: Surroundings) -> list[str]:
    command = pod.container.get("command")
    if command is None:  # the image's entry point, which tests/repo/test_images.py checks
        return [
            "-P",
            "-m",
            MODULES[pod.container["image"].removeprefix("flambeau/").partition(":")[0]],
        ]
    if command[0] == "python":
        return list(command[1:])
    script, *rest = command
    return [str(around.site / "bin" / script), *rest]


def _environment(pod: Workload, around: Surroundings) -> dict[str, str]:
    own = {one["name"]: one["value"] for one in pod.container.get("env", []) if "value" in one}
    aws = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    return {
        **{name: _here(f"={value}", around)[1:] for name, value in own.items()},
        **aws,
        "PATH": os.defpath,
        "PYTHONPATH": str(around.site),
    }


def _here(argument: str, around: Surroundings) -> str:
    name, equals, value = argument.partition("=")
    if name == "--set":
        inner = _here(value, around)
        return f"{name}{equals}{inner}"
    if name.replace("_", "-").endswith("-port"):
        value = "0"
    elif value == "0.0.0.0":
        value = "127.0.0.1"
    elif value.startswith("redis://"):
        value = around.queue
    elif value.startswith("s3://models/"):
        value = around.store
    elif value.endswith("/jwks.json") and "://" in value:
        value = f"{around.folder}/etc/flambeau/jwks.json"
    elif re.match(r"https?://[^/]+/v1/traces", value):
        value = "http://127.0.0.1:9/v1/traces"
    elif argument.startswith("/"):
        return f"{around.folder}{argument}"
    elif value.startswith("/"):
        value = f"{around.folder}{value}"
    return f"{name}{equals}{value}"
