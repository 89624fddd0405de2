"""`flambeau capture`: a proxy in front of a server that records requests for `flambeau replay`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flambeau.commands.options.output import writable_file
from flambeau.commands.options.tls import chosen_tls
from flambeau.commands.text.failures import failing_with
from flambeau.commands.text.tables import columns
from model_store.host.install_advice import needing

if TYPE_CHECKING:
    from flambeau.replay.capturing.proxy import CaptureProxy
    from flambeau.replay.capturing.recorder import Recorder

MIB = 2**20
SWITCH_S = 0.0005
"""Time for which the thread that writes may keep the interpreter lock; usually 5 ms."""
GRACE_S = 10.0
"""Seconds for requests in flight when the proxy stops."""


def capture(
    server: Annotated[
        str, typer.Option("--to", metavar="URL", help="The server behind the proxy.")
    ],
    out: Annotated[
        Path, typer.Option(callback=writable_file, help="The capture; appended to if it is there.")
    ] = Path("capture.jsonl"),
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address for clients; port 0 picks one.")
    ] = "127.0.0.1:9080",
    answers: Annotated[bool, typer.Option("--answers", help="Record answers, too.")] = False,
    credentials: Annotated[
        bool, typer.Option("--credentials", help="Record credentials and cookies, too.")
    ] = False,
    sample: Annotated[
        float, typer.Option(min=0, max=1, help="Share of the requests to record.")
    ] = 1.0,
    max_requests: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="Requests to record; others only pass.")
    ] = 1_000_000,
    max_body_mb: Annotated[
        int, typer.Option(min=1, max=64, help="Largest body to record, in MiB.")
    ] = 16,
    max_file_mb: Annotated[
        int, typer.Option(min=1, help="Size of the capture at which recording ends, in MiB.")
    ] = 1024,
) -> None:
    """Pass requests on to a server, and record them for a replay. Ctrl-C stops it."""
    import asyncio

    with needing("edges"):
        import uvloop

        from flambeau.replay.capturing.proxy import CaptureProxy
        from flambeau.replay.capturing.recorder import Recorder, RecordingLimits
        from flambeau.replay.errors import ReplayError
        from flambeau.replay.server_url import ServerUrl, parse_listen

    limits = RecordingLimits(
        sample=sample,
        max_requests=max_requests,
        max_body_bytes=max_body_mb * MIB,
        max_file_bytes=max_file_mb * MIB,
        answers=answers,
        credentials=credentials,
    )
    with failing_with({ReplayError: 2}):
        address = parse_listen(listen)
        behind = ServerUrl.parse_origin(server, chosen_tls())
        recorder = Recorder(out, limits, lambda why: typer.echo(f"recording ends: {why}", err=True))
        proxy = CaptureProxy(behind, recorder)
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(_serve(proxy, address, behind.text, out))
        finally:
            recorder.close()
    typer.echo("\n".join(_summary(proxy, recorder, out)))


async def _serve(proxy: "CaptureProxy", address: tuple[str, int], server: str, out: Path) -> None:
    """Passes on until SIGINT or SIGTERM."""
    import asyncio

    from flambeau.replay.capturing.proxy import MAX_CONNECTIONS
    from services.process import raise_descriptor_limit, stop_on_signals

    raise_descriptor_limit(2 * MAX_CONNECTIONS)
    sys.setswitchinterval(SWITCH_S)
    port = await proxy.start(*address)
    asked = asyncio.Event()
    stop_on_signals(asked)
    host = f"[{address[0]}]" if ":" in address[0] else address[0]
    print(f"capture  http://{host}:{port} -> {server}, recorded in {out}", flush=True)
    await asked.wait()
    await proxy.stop(GRACE_S)


def _summary(proxy: "CaptureProxy", recorder: "Recorder", out: Path) -> list[str]:
    rows = [(f"recorded in {out}", str(recorder.recorded))]
    rows += [(f"left out: {why}", str(count)) for why, count in recorder.left_out.most_common()]
    rows += [(f"closed: {why}", str(count)) for why, count in proxy.refused.most_common()]
    return columns(rows)
