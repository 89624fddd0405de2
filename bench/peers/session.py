"""One run: loads every server in turn, for seconds each, so that a noisy minute affects all alike.

All servers of a model run at the same time, and all but the one under load are idle. In: peers and
models. Out: figures, starts, and a reason for each server that could not be measured.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field

from bench.peers.answers import ask_once, check
from bench.peers.figures import Figure, Start
from bench.peers.load import Load, NothingAnsweredError, load_grpc, load_rest
from bench.peers.peer import Form, Launch, Peer, PeerError
from bench.peers.process_tree import cpu_seconds, resident_mebibytes
from bench.peers.running_server import RunningServer, running
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
        """Measures everything; a server that failed once is left out of the later rounds."""
        for model in models:
            with ExitStack() as stack:
                targets = []
                for peer in peers:
                    with self._noting(peer, model):
                        targets.append(self._start(peer, model, stack))
                for number in range(rounds):
                    print(f"round {number + 1}/{rounds}: {model.name}", flush=True)
                    self._round(targets if number % 2 == 0 else targets[::-1], model, seconds)
                for target in targets:
                    with self._noting(target.peer, model):
                        self._end(target)

    def _start(self, peer: Peer, model: ServedModel, stack: ExitStack) -> "_Target":
        launch = peer.start(model)
        server = stack.enter_context(running(launch, lambda: ask_once(peer, launch, model)))
        target = _Target(server.pid, launch, peer, model, check(peer, launch, model), server)
        print(
            f"{peer.name}, {model.name}: right answers; cold start {server.cold_start_s:.2f} s",
            flush=True,
        )
        for form in target.forms:
            target.warm_up(form, max(model.clients), peer.warm_up_s)
        return target

    def _round(self, targets: Sequence["_Target"], model: ServedModel, seconds: int) -> None:
        for form in Form:
            for clients in model.clients:
                for target in targets:
                    is_well = (target.peer.name, model.name) not in self.failures
                    if is_well and form in target.forms:
                        with self._noting(target.peer, model):
                            self.figures.append(target.figure(form, clients, seconds))

    def _end(self, target: "_Target") -> None:
        check(target.peer, target.launch, target.model)
        self.starts.append(
            Start(
                server=target.peer.name,
                model=target.model.name,
                cold_start_s=target.server.cold_start_s,
                resident_mib=resident_mebibytes(target.pid),
            )
        )

    @contextmanager
    def _noting(self, peer: Peer, model: ServedModel) -> Iterator[None]:
        """Notes the failure of a server, which must not end the run."""
        try:
            yield
        except PeerError as error:
            self.failures[peer.name, model.name] = str(error)
            print(f"  {peer.name} is not measured: {error}", flush=True)


@dataclass(frozen=True, slots=True)
class _Target:
    """A running server with the model it serves."""

    pid: int
    launch: Launch
    peer: Peer
    model: ServedModel
    answer_bytes: dict[Form, int]
    server: RunningServer

    @property
    def forms(self) -> list[Form]:
        """Forms to measure."""
        small = self.model.name == SMALL_MODEL
        return [form for form in self.peer.forms if not (small and form is Form.BINARY)]

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
            client_cpu_us=load.client_cpu_s / load.answered * 1e6,
            errors=load.failed,
        )
        print(
            f"  {self.peer.name:14} {form}, {clients:>2} clients: "
            f"{figure.requests_per_second:>9,.1f} requests/s, "
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
