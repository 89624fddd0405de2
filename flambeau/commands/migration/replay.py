"""`flambeau replay`: sends the same requests to two servers, and reports what differs."""

from functools import partial
from pathlib import Path

import typer

from flambeau.calling.progress_bar import progress_bar
from flambeau.commands.migration import replay_options as options
from flambeau.commands.options.as_json import AsJson, print_json
from flambeau.commands.options.tls import chosen_tls
from flambeau.commands.options.token import TokenFile, read_token
from flambeau.commands.text.failures import failing_with
from model_store.host.install_advice import needing

MIB = 2**20


def replay(
    new: options.NewServer,
    requests: options.Requests,
    old: options.OldServer = "",
    relative_tolerance: options.RelativeTolerance = 1e-3,
    absolute_tolerance: options.AbsoluteTolerance = 1e-5,
    headers: options.ComparedHeaders = None,
    ignore: options.IgnoredPaths = None,
    exact_texts: options.ExactTexts = False,
    methods: options.Methods = options.METHODS,
    concurrency: options.Concurrency = 1,
    rate: options.Rate = 0,
    timeout_s: options.TimeoutS = 30,
    max_answer_mb: options.MaxAnswerMb = 64,
    from_token_file: TokenFile = None,
    to_token_file: TokenFile = None,
    skip_bad: options.SkipBad = False,
    report_dir: options.ReportDir = Path("replay-report"),
    resume: options.Resume = None,
    show: options.Shown = 20,
    as_json: AsJson = False,
) -> None:
    """Send the same requests to two servers, and report how their answers differ.

    Exit code 0: all answers are equal; 1: some differ; 2: not all requests were compared.
    """
    with needing("edges"):
        from flambeau.replay.comparison.findings import Rules
        from flambeau.replay.errors import ReplayError
        from flambeau.replay.records import PREDICTING
        from flambeau.replay.server_connection import CallLimits
        from flambeau.replay.session import NOT_DONE, Session, servers_of

    with failing_with({ReplayError: NOT_DONE, OSError: NOT_DONE}):
        session = Session(
            servers=servers_of(old, new, chosen_tls()),
            tokens=(read_token(from_token_file), read_token(to_token_file)),
            requests=requests,
            rules=Rules(
                relative=relative_tolerance,
                absolute=absolute_tolerance,
                headers=("content-type", *(name.lower() for name in headers or ())),
                ignored=tuple(ignore or ()),
                normalises=not exact_texts,
            ),
            limits=CallLimits(timeout_s=timeout_s, max_answer_bytes=max_answer_mb * MIB),
            methods=frozenset(methods.upper().split(","))
            | ({PREDICTING} if methods == options.METHODS or "PUT" in methods.upper() else set()),
            concurrency=concurrency,
            rate=rate,
            skip_bad=skip_bad,
        )
        watched = partial(progress_bar, "replay", shown=None)
        report = session.run(report_dir, resume, show, watched)
    if as_json:
        print_json(report.facts)
    else:
        typer.echo("\n".join([*report.lines, "", f"wrote {report_dir}"]))
    raise typer.Exit(report.exit_code)
