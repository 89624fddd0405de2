"""Triton with one model of its Python backend, beside our server."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from bench.peers.answers import WrongAnswerError
from bench.peers.peer import Launch, PeerError
from bench.peers.running_server import RunningServer, running
from bench.peers.servers.triton_peer import Triton


@contextmanager
def triton(
    name: str, service: str, config: str, ask: Callable[[Launch], None]
) -> Iterator[RunningServer | None]:
    """Runs it until the block ends; gives None, and prints why, where it does not run.

    Args:
        name: name of the model.
        service: file of `bench/peers/services` with its class.
        config: its configuration; see `Triton.start_service`.
        ask: sends one request; raises `PeerError` or `OSError` unless it is answered, and
            `WrongAnswerError` to give up.
    """
    with ExitStack() as stack:
        server = None
        try:
            peer = Triton(0)
            peer.install()
            launch = peer.start_service(name, service, config)
            server = stack.enter_context(running(launch, lambda: _why_no_answer(launch, ask)))
        except (PeerError, OSError) as error:
            print(f"Triton does not run here: {error}", flush=True)
        yield server


def _why_no_answer(launch: Launch, ask: Callable[[Launch], None]) -> str:
    try:
        ask(launch)
    except WrongAnswerError:
        raise
    except (PeerError, OSError) as error:
        return str(error) or repr(error)
    return ""
