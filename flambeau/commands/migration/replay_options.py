"""The options of `flambeau replay`."""

from pathlib import Path
from typing import Annotated

import typer

from flambeau.commands.options.output import writable_folder

METHODS = "GET,HEAD,POST"
"""Methods that are sent by default, beside predictions by PUT: other PUT and DELETE change what the
old server serves."""

NewServer = Annotated[str, typer.Option("--to", metavar="URL", help="The new server.")]
OldServer = Annotated[
    str,
    typer.Option("--from", metavar="URL", help="The old server; recorded answers unless given."),
]
Requests = Annotated[
    Path, typer.Option(help="A file of `flambeau capture`, or a folder of requests (*.json).")
]
RelativeTolerance = Annotated[
    float,
    typer.Option("--rtol", min=0, help="Tolerance of fractions, as a part of the old number."),
]
AbsoluteTolerance = Annotated[
    float, typer.Option("--atol", min=0, help="Tolerance of fractions, beside the relative one.")
]
ComparedHeaders = Annotated[
    list[str] | None,
    typer.Option(
        "--header", metavar="NAME", help="A header to compare, beside content-type; * for all."
    ),
]
IgnoredPaths = Annotated[
    list[str] | None,
    typer.Option(
        "--ignore", metavar="PATH", help="A JSON path to leave out: id, outputs[*].name, **.pid."
    ),
]
ExactTexts = Annotated[
    bool, typer.Option("--exact-texts", help="Compare ids, times and server addresses, too.")
]
Methods = Annotated[
    str, typer.Option(help="Methods to send; predictions by PUT go with the default.")
]
Concurrency = Annotated[int, typer.Option(min=1, max=1000, help="Requests in flight.")]
Rate = Annotated[float, typer.Option(min=0, help="Most requests a second; 0 for no limit.")]
TimeoutS = Annotated[float, typer.Option(min=0.001, max=86_400, help="Seconds for an answer.")]
MaxAnswerMb = Annotated[int, typer.Option(min=1, max=1024, help="Largest answer, in MiB.")]
SkipBad = Annotated[
    bool, typer.Option("--skip-bad", help="Leave out requests that cannot be read.")
]
ReportDir = Annotated[
    Path, typer.Option(callback=writable_folder, help="Folder of the reports and the journal.")
]
Resume = Annotated[
    bool | None,
    typer.Option("--resume/--restart", help="Continue an interrupted replay, or start again."),
]
Shown = Annotated[
    int, typer.Option("--show", min=0, max=1000, help="Requests whose differences are shown.")
]
