"""Renders the run as Markdown tables and as a plot. Pure: figures in, text out.

Every table of figures is followed by one of ratios, ours ÷ theirs; a ratio in the peer's favour
is bold. Medians over the rounds.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bench.figures.verdicts import MISSING, Verdict, at_least, at_most, markdown_table, ratio
from bench.peers.bar_chart import Group, Panel, draw, short
from bench.peers.figures import Figure, Start, median_figures, median_starts
from bench.peers.peer import Form

TITLES = {
    "tiny-mlp": "Tiny MLP, 64 → 256 → 10",
    "cnn": "CNN on 3 x 64 x 64",
    "encoder": "Transformer encoder, 64 tokens",
}
COLOURS = {Form.JSON: "#3a6ea5", Form.BINARY: "#5aa9a0", Form.GRPC: "#e08a2e"}
LARGER_MODELS = ("cnn", "encoder")
SMALL_MODEL = "tiny-mlp"
AGAINST_BEST_PEER = 3.5
"""Target ratio of the best artifact to the FP32 checkpoint that peers serve."""
FP32_AGAINST_BEST_PEER = 1.2
RATE_AGAINST_BEST_PEER = 2.0
MEDIAN_AGAINST_BEST_PEER = 0.6
CPU_AGAINST = (
    (Form.JSON, "mosec", 0.5), (Form.JSON, "triton", 0.35), (Form.GRPC, "triton", 0.4),
)  # fmt: skip
"""Form, peer and target ratio of CPU time a request, small model, most clients."""
NONE = "-"
LONGEST_REASON = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerReport:
    """Results of one run; the content of `peers.json`."""

    figures: Sequence[Figure]
    """One for each round."""
    starts: Sequence[Start]
    """One for each round."""
    ours: Sequence[str]
    """Names of our servers; the first has the default configuration."""
    asked: Mapping[str, str]
    """Description of the settings, by server."""
    bodies: Mapping[str, Mapping[str, str]]
    """Description of the body, by server and form."""
    versions: Mapping[str, str]
    failures: Mapping[str, str]
    """Servers that were not measured, and the reasons."""
    measured: Mapping[str, object]
    """Time, machine and durations of the run."""

    def tables(self, plot: str) -> str:
        """Renders Markdown, without the marks around it.

        Args:
            plot: address of the plot.
        """
        figures = median_figures(self.figures)
        models = list(dict.fromkeys(figure.model for figure in figures))
        sections = [self._opening(plot)]
        if verdicts := self.verdicts():
            sections.append(markdown_table(verdicts))
        for model in models:
            sections.append(f"### {TITLES.get(model, model)}")
            sections += self._model_tables([f for f in figures if f.model == model])
        sections += ["### Start and memory", self._start_table(median_starts(self.starts), models)]
        sections += ["### Settings of each server", self._asked_list()]
        return "\n\n".join(sections)

    def verdicts(self) -> list[Verdict]:
        """Returns our figures beside those of the best peer, or of one by name."""
        figures = median_figures(self.figures)
        found = []
        if small := [f for f in figures if f.model == SMALL_MODEL]:
            found += self._small_verdicts(small)
        for model in dict.fromkeys(f.model for f in figures if f.model in LARGER_MODELS):
            own = [f for f in figures if f.model == model]
            best, peers = self._best_rate(own, ours=True), self._best_rate(own, ours=False)
            fp32 = self._best_rate([f for f in own if f.server != self.ours[0]], ours=True)
            title = TITLES[model]
            found += [
                at_least(f"{title}: our best requests/s ÷ the best of the peers",
                         ratio(best, peers), AGAINST_BEST_PEER),
                at_least(f"{title}: FP32 requests/s ÷ the best of the peers",
                         ratio(fp32, peers), FP32_AGAINST_BEST_PEER),
            ]  # fmt: skip
        return found

    def _small_verdicts(self, figures: Sequence[Figure]) -> list[Verdict]:
        """Returns those of the small model; ours are FP32, as all peers'."""
        title, mine = TITLES[SMALL_MODEL], self.ours[-1]
        most = max(figure.clients for figure in figures)
        found = []
        for form in (Form.JSON, Form.GRPC):
            own = [
                f
                for f in figures
                if f.form == form and (f.server == mine or f.server not in self.ours)
            ]
            many = [f for f in own if f.clients == most]
            cpu = {f.server: f.cpu_us for f in many}
            for _, peer, target in (case for case in CPU_AGAINST if case[0] == form):
                theirs = min((us for n, us in cpu.items() if n.startswith(peer)), default=MISSING)
                found.append(
                    at_most(f"{title}, {form}, {most} clients: CPU ÷ {peer}'s",
                            ratio(cpu.get(mine, MISSING), theirs), target)
                )  # fmt: skip
            found.append(
                at_least(f"{title}, {form}, {most} clients: requests/s ÷ the best of the peers",
                         ratio(self._best_rate(many, ours=True), self._best_rate(many, ours=False)),
                         RATE_AGAINST_BEST_PEER)
            )  # fmt: skip
            p50 = {f.server: f.p50_ms for f in own if f.clients == 1}
            theirs = min((ms for name, ms in p50.items() if name != mine), default=MISSING)
            found.append(
                at_most(f"{title}, {form}, 1 client: median ÷ the best of the peers",
                        ratio(p50.get(mine, MISSING), theirs), MEDIAN_AGAINST_BEST_PEER)
            )  # fmt: skip
        return found

    def _best_rate(self, figures: Sequence[Figure], *, ours: bool) -> float:
        rates = [_rate(f) for f in figures if (f.server in self.ours) is ours]
        return max(rates, default=MISSING)

    def plot(self) -> str:
        """Draws SVG: requests/s and CPU of the small model, requests/s of the others."""
        figures = median_figures(self.figures)
        panels = []
        for model in dict.fromkeys(figure.model for figure in figures):
            most = max(f.clients for f in figures if f.model == model)
            shown = [f for f in figures if f.model == model and f.clients == most]
            title = f"{TITLES.get(model, model)}: {most} clients"
            panels.append(self._panel(title, "requests/s, longer is better", shown, _rate))
            if model == "tiny-mlp":
                note = "server CPU, µs a request, shorter is better"
                panels.append(self._panel(title, note, shown, _cpu))
        colours = {str(form): colour for form, colour in COLOURS.items()}
        subtitle = f"{self.measured['where']}; batches of at most 32, the same weights and clients"
        return draw("flambeau and its peers", subtitle, colours, panels)

    def _panel(
        self, title: str, note: str, figures: Sequence[Figure], value: Callable[[Figure], float]
    ) -> Panel:
        groups = []
        for server in dict.fromkeys(f.server for f in figures):
            bars = {str(f.form): value(f) for f in figures if f.server == server and value(f) > 0}
            if bars:
                ours = server in self.ours
                groups.append(Group(label=server, highlighted=ours, bars=bars))
        return Panel(title=title, note=note, groups=groups)

    def _opening(self, plot: str) -> str:
        m = self.measured
        lines = [
            f"Measured {m['at']}, {m['where']}, Python {m['python']}: medians of {m['rounds']} "
            f"rounds of {m['seconds']} s, in which the servers take turns. Requests/s with p50 / "
            "p99 in ms; CPU is user and system time of all the server's processes over the "
            "requests they answered, and in brackets the client's. In the tables of ratios, ours ÷ "
            "theirs, **bold** is where we lose.",
            f"![Requests per second and CPU a request of every server]({plot})",
        ]
        if self.failures:
            lines.append("Not measured:")
            lines.append(
                "\n".join(
                    f"- {who}: `{why[:LONGEST_REASON]}`" for who, why in self.failures.items()
                )
            )
        return "\n\n".join(lines)

    def _model_tables(self, figures: Sequence[Figure]) -> list[str]:
        """Renders a pair of tables for each form if there are several client counts, else one."""
        if len({figure.clients for figure in figures}) == 1:
            return self._pair(figures, lambda f: f"{f.form}, {f.clients} clients")
        sections = []
        for form in Form:
            if chosen := [f for f in figures if f.form == form]:
                sections += [f"**{form}**", *self._pair(chosen, _clients)]
        return sections

    def _pair(self, figures: Sequence[Figure], column: Callable[[Figure], str]) -> list[str]:
        """Renders figures by server and column, then the ratios of each of ours to each peer."""
        cells = {(figure.server, column(figure)): figure for figure in figures}
        columns = list(dict.fromkeys(column(f) for f in sorted(figures, key=_order)))
        servers = list(dict.fromkeys(figure.server for figure in figures))
        rows = []
        for server in servers:
            row = [cells.get((server, name)) for name in columns]
            errors = sum(figure.errors for figure in row if figure)
            rates, costs = [_rates(figure) for figure in row], [_costs(figure) for figure in row]
            rows.append([server, *rates, *costs, str(errors)])
        head = ["server", *columns, *(f"CPU µs, {name}" for name in columns), "errors"]
        tables = [_table(head, rows)]
        ours = [name for name in self.ours if name in servers]
        peers = [name for name in servers if name not in self.ours]
        if ours and peers:
            tables.append(_ratio_table(ours, peers, columns, cells))
        return tables

    def _start_table(self, starts: Sequence[Start], models: Sequence[str]) -> str:
        cells = {(start.server, start.model): start for start in starts}
        rows = []
        for server in dict.fromkeys(start.server for start in starts):
            row = [cells.get((server, model)) for model in models]
            rows.append(
                [
                    server,
                    *(f"{start.cold_start_s:.2f}" if start else NONE for start in row),
                    *(f"{start.resident_mib:,.0f}" if start else NONE for start in row),
                ]
            )
        head = ["server", *(f"cold start s, {model}" for model in models)]
        head += [f"MiB, {model}" for model in models]
        note = (
            "From the start of the process to the first right answer, the files warm in the page "
            "cache; memory is PSS of all processes after the load."
        )
        return f"{note}\n\n{_table(head, rows)}"

    def _asked_list(self) -> str:
        lines = []
        for server, asked in self.asked.items():
            bodies = "; ".join(f"{form}: {body}" for form, body in self.bodies[server].items())
            lines.append(f"- {server} {self.versions[server]}: {asked}. Bodies: {bodies}.")
        return "\n".join(lines)


def _ratio_table(
    ours: Sequence[str],
    peers: Sequence[str],
    columns: Sequence[str],
    cells: Mapping[tuple[str, str], Figure],
) -> str:
    head = ["ours ÷ theirs", *columns, *(f"CPU, {name}" for name in columns)]
    rows = []
    for mine in ours:
        for peer in peers:
            pairs = [(cells.get((mine, name)), cells.get((peer, name))) for name in columns]
            rates = [_ratio(*pair, _rate, more_is_better=True) for pair in pairs]
            costs = [_ratio(*pair, _cpu, more_is_better=False) for pair in pairs]
            rows.append([f"{mine} ÷ {peer}", *rates, *costs])
    return _table(head, rows)


def _ratio(
    mine: Figure | None,
    theirs: Figure | None,
    value: Callable[[Figure], float],
    more_is_better: bool,
) -> str:
    if mine is None or theirs is None or value(theirs) == 0:
        return NONE
    ratio = value(mine) / value(theirs)
    text = short(ratio)
    return f"**{text}**" if (ratio < 1) is more_is_better and ratio != 1 else text


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---", *("---:" for _ in head[1:])], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _rates(figure: Figure | None) -> str:
    if figure is None:
        return NONE
    rate = short(figure.requests_per_second)
    return f"{rate} ({short(figure.p50_ms)} / {short(figure.p99_ms)})"


def _costs(figure: Figure | None) -> str:
    return f"{short(figure.cpu_us)} ({short(figure.client_cpu_us)})" if figure else NONE


def _rate(figure: Figure) -> float:
    return figure.requests_per_second


def _cpu(figure: Figure) -> float:
    return figure.cpu_us


def _clients(figure: Figure) -> str:
    return "1 client" if figure.clients == 1 else f"{figure.clients} clients"


def _order(figure: Figure) -> tuple[int, int]:
    return list(Form).index(figure.form), figure.clients
