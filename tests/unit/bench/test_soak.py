"""A soak watches each process of a server by its name: memory, descriptors, and replacements."""

import os
import subprocess
import sys

import pytest

from bench.servers.process_figures import ProcessFigures, process_name, processes_of
from bench.soak import Look, Soak
from model_store.host.own_process import own_command

EDGE = own_command("services.standalone.edge_process", "7", "8", "1", "2")
MODEL = own_command("services.standalone.model_process", "7")
SERVE = ["flambeau", "serve"]


@pytest.mark.parametrize(
    ("command", "is_root", "is_alone", "name"),
    [
        (EDGE, False, False, "edge 1"),
        (MODEL, False, False, "model process"),
        (SERVE, True, False, "supervisor"),
        (SERVE, True, True, "server"),
        (["sleep"], False, True, "other"),
    ],
)
def test_processes_have_names(command: list[str], is_root: bool, is_alone: bool, name: str) -> None:
    assert process_name(command, is_root=is_root, is_alone=is_alone) == name


def test_processes_of_a_server_are_measured() -> None:
    child = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"]
    with subprocess.Popen(child, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        (found,) = processes_of(process.pid)
        expected = len(os.listdir(f"/proc/{process.pid}/fd"))
        process.communicate()
    assert (found.name, found.pid, found.descriptors) == ("server", process.pid, expected)
    assert found.memory_mib > 3
    assert (found.shared_mib, found.links) == (0, 0)


def process(name: str, memory_mib: float, pid: int = 1) -> ProcessFigures:
    return ProcessFigures(name, pid, memory_mib, shared_mib=16, descriptors=9, links=1)


def soak_of(*memory: tuple[float, float]) -> Soak:
    """Returns one of an edge and a model process with so much memory, minute by minute."""
    looks = [
        Look(60.0 * n, [process("edge 0", edge), process("model process", model)], 0, 0, 0, 0)
        for n, (edge, model) in enumerate(memory)
    ]
    return Soak(looks=looks, left_descriptors=0, left_link_bytes=0)


def missed(soak: Soak) -> list[str]:
    """Returns the names of the figures beside their targets."""
    return [v.what.split(": ", 1)[1] for v in soak.verdicts(180.0) if not v.reached]


def test_growth_of_one_process_is_seen_beside_a_large_one() -> None:
    growth = "growth of memory after the first 1.0 min"
    assert missed(soak_of((10, 990), (10, 990), (10, 990))) == []
    assert missed(soak_of((10, 990), (10, 990), (12, 990))) == [f"{growth}, edge 0"]
    assert missed(soak_of((10, 90), (10, 90), (12, 92))) == [
        growth, f"{growth}, edge 0", f"{growth}, model process",
    ]  # fmt: skip


def test_replaced_process_and_all_that_is_left_behind_are_told() -> None:
    soak = soak_of((10, 90), (10, 90), (10, 90))
    soak.looks[-1].processes[0] = process("edge 0", 10, pid=2)
    soak.left_descriptors, soak.left_link_bytes = 1, 64
    assert missed(soak) == ["descriptors left open", "processes replaced", "shared memory left"]
