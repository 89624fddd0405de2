"""The .proto files in the jar of the real TorchServe, beside what our tests have written down.

In: the environment that has TorchServe. Out: what differs, as text.
"""

import subprocess
import tempfile
import zipfile
from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool

from bench.peers.environment import Environment
from tests.contract.proto_description import described
from tests.fixtures.client_environment import client_python
from tests.fixtures.torchserve_messages import FILES

JAR = "ts/frontend/model-server.jar"
SERVICES = {"inference": "proto/inference.proto", "management": "proto/management.proto"}
NEEDED = ("google/rpc/status.proto",)


def differences(environment: Environment) -> list[str]:
    """Returns what TorchServe's files have, or lack, beside the facts of our tests."""
    pool = _compiled(environment.site_packages / JAR)
    found = []
    for name, path in SERVICES.items():
        theirs, facts = described(pool.FindFileByName(path)), described(FILES[name])
        found += [
            f"{path}, {part}: TorchServe {theirs[part]}, ours {facts[part]}"
            for part in theirs
            if theirs[part] != facts[part]
        ]
    return found


def _compiled(jar: Path) -> DescriptorPool:
    """Compiles the files of a jar."""
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(jar) as archive:
        for path in (*SERVICES.values(), *NEEDED):
            archive.extract(path, folder)
        made = Path(folder) / "made"
        command = (client_python(), "-m", "grpc_tools.protoc", "-I.", "--include_imports",
                   f"--descriptor_set_out={made}", *SERVICES.values())  # fmt: skip
        subprocess.run(command, cwd=folder, check=True)
        files = FileDescriptorSet.FromString(made.read_bytes()).file
    pool = DescriptorPool()
    for file in files:
        pool.Add(file)
    return pool
