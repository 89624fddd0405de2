"""One run: measures every server in turn within each round, so that a noisy minute affects all.

Only one server runs at a time; each start serves one model. In: peers and models. Out: figures,
starts, and a reason for each server that could not be measured.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from bench.peers.answers import ask_once, check
from bench.peers.figures import Figure, Start
from bench.peers.load import Load, NothingAnsweredError, load_grpc, load_rest
from bench.peers.peer import Form, Launch, Peer, PeerError
from bench.peers.process_tree import cpu_seconds, resident_mebibytes
from bench.peers.running_server import running
from bench.peers.served_model import ServedModel

WARM_UP_S = 1
"""Seconds before each figure; the first warm-up of a form is longer, see `Peer.warm_up_s`."""
LARGE_MODEL_TIMES = 3
"""Factor on a large model's load duration: its responses come in bursts of a whole batch."""
SMALL_MODEL = "tiny-mlp"
"""Its row has a few hundred bytes, so that binary bodies over REST are pointless."""


@dataclass(slots=True)
class Session:
    """Results of a run so far."""

    figures: list[Figure] = field(default_factory=list)
    starts: list[Start] = field(default_factory=list)
    failures: dict[tuple[str, str], str] = field(default_factory=dict)
    """Reason for each missing measurement, by server and model."""

    def measure(
        self, peers: Sequence[Peer], models: Sequence[ServedModel], rounds: int, seconds: int
    ) -> None:
        """Measures everything, round by round; a server that failed once is not tried again."""
        for number in range(1, rounds + 1):
            for model in models:
                for peer in peers:
                    if (peer.name, model.name) in self.failures:
                        continue
                    print(f"round {number}/{rounds}: {peer.name}, {model.name}", flush=True)
                    try:
                        self._measure_server(peer, model, seconds)
                    except PeerError as error:
                        self.failures[peer.name, model.name] = str(error)
                        print(f"  not measured: {error}", flush=True)

    def _measure_server(self, peer: Peer, model: ServedModel, seconds: int) -> None:
        launch = peer.start(model)
        with running(launch, lambda: ask_once(peer, launch, model)) as server:
            target = _Target(server.pid, launch, peer, model, check(peer, launch, model))
            print(f"  right answers; cold start {server.cold_start_s:.2f} s", flush=True)
            figures = []
            for form in peer.forms:
                if form is Form.BINARY and model.name == SMALL_MODEL:
                    continue
                target.warm_up(form, max(model.clients), peer.warm_up_s)
                figures += [target.figure(form, clients, seconds) for clients in model.clients]
            check(peer, launch, model)
            start = Start(
                server=peer.name,
                model=model.name,
                cold_start_s=server.cold_start_s,
                resident_mib=resident_mebibytes(server.pid),
            )
        self.figures += figures
        self.starts.append(start)


@dataclass(frozen=True, slots=True)
class _Target:
    """A running server with the model it serves."""

    pid: int
    launch: Launch
    peer: Peer
    model: ServedModel
    answer_bytes: dict[Form, int]

    def figure(self, form: Form, clients: int, seconds: int) -> Figure:
        """Loads the server and measures its CPU time meanwhile."""
        self.warm_up(form, clients, WARM_UP_S)
        seconds *= 1 if self.model.name == SMALL_MODEL else LARGE_MODEL_TIMES
        before = cpu_seconds(self.pid)
        load = self._load(form, clients, seconds)
        figure = Figure(
            server=self.peer.name,
            model=self.model.name,
            form=form,
            clients=clients,
            requests_per_second=load.answered / load.duration_s,
            p50_ms=load.p50_ms,
            p99_ms=load.p99_ms,
            cpu_us=(cpu_seconds(self.pid) - before) / load.answered * 1e6,
            errors=load.failed,
        )
        print(
            f"  {form}, {clients:>2} clients: {figure.requests_per_second:>9,.1f} requests/s, "
            f"p50 {figure.p50_ms:.2f} ms, p99 {figure.p99_ms:.2f} ms, "
            f"{figure.cpu_us:,.0f} µs CPU a request, errors {figure.errors}",
            flush=True,
        )
        return figure

    def warm_up(self, form: Form, clients: int, seconds: int) -> None:
        """Runs a load without figures; a large model may not respond within it."""
        with suppress(NothingAnsweredError):
            self._load(form, clients, seconds)

    def _load(self, form: Form, clients: int, seconds: int) -> Load:
        ask = self.peer.request(self.model, form, self.model.rows[:1])
        if form is Form.GRPC:
            at = self.launch.grpc
            return load_grpc(at, ask, clients, seconds, self.answer_bytes[form])
        return load_rest(self.launch.http, [ask], clients, seconds)
