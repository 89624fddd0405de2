"""What `make bench-torchserve` makes of its figures."""

from typing import Any

from bench.peers.figures import Figure, Start
from bench.peers.peer import Form
from bench.peers.torchserve_migration import verdicts


def figure(server: str, model: str, form: Form, clients: int, **values: Any) -> Figure:
    usual = {"requests_per_second": 100.0, "p50_ms": 4.0, "cpu_us": 100.0}
    return Figure(
        server=server, model=model, form=form, clients=clients, p99_ms=9.0, client_cpu_us=1.0,
        errors=0, **{**usual, **values},
    )  # fmt: skip


def test_ratios_are_those_of_the_same_load() -> None:
    figures = []
    for form in Form:
        for clients in (1, 32, 64):
            figures.append(
                figure("ours", "tiny-mlp", form, clients, cpu_us=50.0 - clients / 4, p50_ms=1.0)
            )
            figures.append(figure("theirs", "tiny-mlp", form, clients))
        figures.append(figure("ours", "cnn", form, 32, requests_per_second=150.0))
        figures.append(figure("theirs", "cnn", form, 32))
    start = Start(server="ours", model="tiny-mlp", cold_start_s=1.2, resident_mib=1.0)
    found = {one.what: one for one in verdicts(figures, [start], "ours", "theirs")}
    assert len(found) == 2 * 3 + 3 + 1
    assert all(one.reached for one in found.values())
    cpu = found["Tiny MLP, gRPC, 64 clients: requests of a second of CPU ÷ TorchServe's"]
    assert cpu.value == 100 / 34
    assert found["Tiny MLP, REST JSON, 1 client: median ÷ TorchServe's"].value == 0.25
    assert found["CNN, REST binary, 32 clients: requests/s ÷ TorchServe's"].value == 1.5


def test_what_was_not_measured_reaches_no_target() -> None:
    figures = [figure("ours", "tiny-mlp", Form.JSON, 32)]
    assert not any(one.reached for one in verdicts(figures, [], "ours", "theirs"))
