"""Triton with its Python backend: the binary in nvidia-pytriton's wheel."""

import shutil
import sys
import sysconfig
from pathlib import Path

from bench.peers import open_inference
from bench.peers.environment import Environment
from bench.peers.peer import MAX_BATCH, Array, Ask, Form, Launch, Peer, PeerError
from bench.peers.running_server import free_addresses
from bench.peers.served_model import ServedModel
from bench.peers.services import FOLDER as SERVICES

TYPES = {"FP32": "TYPE_FP32", "INT64": "TYPE_INT64"}
STUB = "triton_python_backend_stub"
ONE_INSTANCE = "instance_group [ { kind: KIND_CPU count: 1 } ]"


class Triton(Peer):
    """One instance behind the dynamic batcher.

    Args:
        wait_ms: time for which the dynamic batcher waits for a batch to fill.
        service: file of `bench/peers/services` with the model's class.
    """

    forms = open_inference.FORMS

    def __init__(self, wait_ms: int, service: str = "triton_model.py") -> None:
        self._service = service
        self.name = "triton" if wait_ms else "triton-wait-0"
        self.asked = (
            f"Python backend, one instance, `max_batch_size` {MAX_BATCH}, "
            f"`dynamic_batching` with `max_queue_delay_microseconds` {wait_ms * 1000}"
        )
        self._wait_ms = wait_ms
        self._environment = Environment("triton", ["nvidia-pytriton==0.7.0"])

    def install(self) -> str:
        version = self._environment.install()
        backend = self._environment.folder / "backends" / "python"
        if not (backend / STUB).exists():
            server = self._environment.site_packages / "pytriton" / "tritonserver"
            shutil.copytree(server / "backends" / "python", backend, dirs_exist_ok=True)
            stubs = server / "python_backend_stubs"
            stub = stubs / f"{sys.version_info.major}.{sys.version_info.minor}" / STUB
            if not stub.exists():
                raise PeerError(f"it carries no stub for this Python: {stub} is missing")
            shutil.copy(stub, backend)
        return f"2.51 (nvidia-pytriton {version})"

    def start(self, model: ServedModel) -> Launch:
        folder = self._environment.folder / f"{self.name}-{model.name}"
        repository = folder / "repository"
        model.write_to(repository / model.name / "1")
        shutil.copy(SERVICES / self._service, repository / model.name / "1" / "model.py")
        (repository / model.name / "config.pbtxt").write_text(self._config(model))
        return self._launch(folder, repository)

    def start_service(self, name: str, service: str, config: str) -> Launch:
        """Writes the repository of one model that needs no weights, and returns its start.

        Args:
            name: name of the model.
            service: file of `bench/peers/services` with its class.
            config: its `config.pbtxt`, but for the name, the backend and the instances.
        """
        folder = self._environment.folder / f"triton-{name}"
        version = folder / "repository" / name / "1"
        version.mkdir(parents=True, exist_ok=True)
        shutil.copy(SERVICES / service, version / "model.py")
        (version.parent / "config.pbtxt").write_text(
            f'name: "{name}"\nbackend: "python"\n{config}\n{ONE_INSTANCE}\n'
        )
        return self._launch(folder, folder / "repository")

    def _launch(self, folder: Path, repository: Path) -> Launch:
        http, grpc = free_addresses(2)
        site_packages = self._environment.site_packages
        libraries = (sysconfig.get_config_var("LIBDIR"), site_packages / "nvidia_pytriton.libs")
        options = {
            "model-repository": repository,
            "backend-directory": self._environment.folder / "backends",
            "http-address": "127.0.0.1",
            "http-port": http.partition(":")[2],
            "grpc-address": "127.0.0.1",
            "grpc-port": grpc.partition(":")[2],
            "allow-metrics": "false",
        }
        binary = site_packages / "pytriton" / "tritonserver" / "bin" / "tritonserver"
        return Launch(
            argv=(str(binary), *(f"--{name}={value}" for name, value in options.items())),
            folder=folder,
            http=http,
            grpc=grpc,
            environment={
                # The stub uses the packages of the first `python3` it finds there.
                "PATH": self._environment.search_path,
                "LD_LIBRARY_PATH": ":".join(str(folder) for folder in libraries),
            },
        )

    def request(self, model: ServedModel, form: Form, rows: Array) -> Ask:
        return open_inference.infer(model, form, rows)

    def _config(self, model: ServedModel) -> str:
        dims = ", ".join(str(size) for size in model.row_shape)
        classes = model.expected.shape[1]
        return f"""\
name: "{model.name}"
backend: "python"
max_batch_size: {MAX_BATCH}
input [ {{ name: "{model.input}" data_type: {TYPES[model.datatype]} dims: [ {dims} ] }} ]
output [ {{ name: "{model.output}" data_type: TYPE_FP32 dims: [ {classes} ] }} ]
{ONE_INSTANCE}
dynamic_batching {{ max_queue_delay_microseconds: {self._wait_ms * 1000} }}
"""
