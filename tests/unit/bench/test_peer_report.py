"""The tables and the plot of a run with other servers."""

import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest

from bench.peers.bar_chart import Group, Panel, draw, scale_for, short
from bench.peers.figures import Figure, Start, median_figures
from bench.peers.peer import Form
from bench.peers.report import PeerReport

PLOT = "peers.svg"


def figure(server: str, rate: float, form: Form = Form.JSON, clients: int = 64) -> Figure:
    return Figure(
        server=server,
        model="tiny-mlp",
        form=form,
        clients=clients,
        requests_per_second=rate,
        p50_ms=1.5,
        p99_ms=12.25,
        cpu_us=1e6 / rate,
        client_cpu_us=20.0,
        errors=1,
    )


def report(*figures: Figure) -> PeerReport:
    servers = list(dict.fromkeys(f.server for f in figures))
    return PeerReport(
        figures=figures,
        starts=[
            Start(server=s, model="tiny-mlp", cold_start_s=0.5, resident_mib=120) for s in servers
        ],
        ours=["flambeau"],
        asked={server: f"what {server} was asked" for server in servers},
        bodies={server: {"REST JSON": "numbers"} for server in servers},
        versions=dict.fromkeys(servers, "1.0"),
        failures={"absent": "no wheel"},
        measured={
            "at": "now",
            "cores": 2,
            "python": "3.11",
            "rounds": 3,
            "seconds": 4,
            "where": "free cores",
        },
    )


def rows(text: str) -> dict[str, list[str]]:
    """Returns cells by the first one of their line; of several such lines, the first."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.startswith("|"):
            first, *cells = line.strip("| ").split(" | ")
            found.setdefault(first, cells)
    return found


def test_the_median_of_rounds_and_the_sum_of_errors() -> None:
    rounds = [figure("a", rate) for rate in (300, 100, 200)]
    (median,) = median_figures(rounds)
    assert median.requests_per_second == 200
    assert median.errors == 3


def test_a_ratio_by_which_we_lose_is_bold() -> None:
    text = report(figure("flambeau", 1000), figure("slow", 500), figure("fast", 4000)).tables(PLOT)
    found = rows(text)
    assert found["flambeau ÷ slow"] == ["2.00", "0.50"]
    assert found["flambeau ÷ fast"] == ["**0.25**", "**4.00**"]


def test_the_larger_models_are_held_against_the_best_peer_in_any_form() -> None:
    figures = [
        replace(figure(server, rate, form), model="cnn")
        for server, rate, form in (
            ("flambeau", 100, Form.JSON), ("flambeau", 140, Form.GRPC),
            ("a", 70, Form.JSON), ("b", 20, Form.GRPC),
        )
    ]  # fmt: skip
    best, _ = report(*figures).verdicts()
    assert "CNN" in best.what
    assert best.value == 2
    assert not best.reached
    assert "| ≥ 3.5 | **2** |" in report(*figures).tables(PLOT)


def test_the_small_model_is_held_against_named_peers_and_the_best() -> None:
    figures = [figure("flambeau", 4000), figure("mosec", 1000), figure("triton", 2000)]
    figures += [replace(f, clients=1, p50_ms=ms) for f, ms in zip(figures, (1, 2, 3), strict=True)]
    found = {verdict.what: verdict for verdict in report(*figures).verdicts()}
    values = [found[what].value for what in found if "REST JSON" in what]
    assert values == [0.25, 0.5, 2.0, 0.5]
    assert all(verdict.value != verdict.value for what, verdict in found.items() if "gRPC" in what)


def test_a_form_a_server_does_not_speak_is_a_dash() -> None:
    figures = [figure("flambeau", 1000, form, 32) for form in (Form.JSON, Form.GRPC)]
    found = rows(report(*figures, figure("plain", 500, Form.JSON, 32)).tables(PLOT))
    assert found["plain"] == ["500 (1.50 / 12.2)", "-", "2,000 (20.0)", "-", "1"]
    assert found["flambeau ÷ plain"] == ["2.00", "-", "0.50", "-"]


def test_the_text_says_who_was_asked_what_and_who_was_not_measured() -> None:
    text = report(figure("flambeau", 1000), figure("slow", 500)).tables(PLOT)
    assert "- slow 1.0: what slow was asked. Bodies: REST JSON: numbers." in text
    assert "- absent: `no wheel`" in text


def test_the_plot_is_xml_with_every_server_and_value() -> None:
    figures = [figure("flambeau", 44_000), figure("<peer>", 953), figure("flambeau", 9, Form.GRPC)]
    texts = [e.text for e in ElementTree.fromstring(report(*figures).plot()).iter() if e.text]
    assert {"flambeau", "<peer>", "44,000", "953", "9.00"} <= set(texts)


def test_values_far_apart_get_a_logarithmic_scale_on_which_all_are_seen() -> None:
    near, far = scale_for([10, 100]), scale_for([10, 1000])
    assert (near.logarithmic, far.logarithmic) == (False, True)
    assert near.share(100) == pytest.approx(far.share(1000))
    assert 0 < far.share(10) < far.share(100) < far.share(1000)
    assert far.ticks() == [1, 10, 100, 1000]
    assert near.ticks() == [0, 20, 40, 60, 80, 100]


def test_the_longest_bar_comes_first() -> None:
    groups = [Group(label=str(v), highlighted=False, bars={"s": v}) for v in (1.0, 3.0, 2.0)]
    sheet = draw("t", "", {"s": "#000000"}, [Panel(title="p", note="", groups=groups)])
    labels = [
        e.text for e in ElementTree.fromstring(sheet).iter() if e.text in {"1.0", "2.0", "3.0"}
    ]
    assert labels == ["3.0", "2.0", "1.0"]


def test_numbers_keep_three_digits() -> None:
    assert [short(v) for v in (0.384, 9.5, 12.34, 456.7, 44597)] == [
        "0.38", "9.50", "12.3", "457", "44,597",
    ]  # fmt: skip


def test_figures_of_several_clients_stand_in_columns() -> None:
    figures = [replace(figure("flambeau", 10 * n), clients=n) for n in (1, 32, 64)]
    head = next(line for line in report(*figures).tables(PLOT).splitlines() if "server" in line[:9])
    assert [c for c in head.strip("| ").split(" | ") if c.endswith("clients") or c == "1 client"][
        :3
    ] == ["1 client", "32 clients", "64 clients"]
