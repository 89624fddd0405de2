"""Processes that make batches ahead of the loop, by torch's `DataLoader`.

In: a batch maker, and the places of the batches. Out: the batches, in that order.

Rules: the loader has its own generator, since it would otherwise draw from that of dropout; a
worker process exits at once with its parent, since it also holds the parent's lock; and it ignores
any SIGTERM that its parent did not send, since the parent writes a checkpoint first.
"""

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from training.errors import DataError, TrainingError
from training.loading.batch import TrainingBatch
from training.loading.batch_maker import BatchMaker, Place

PR_SET_PDEATHSIG = 1
"""The option of prctl(2)."""


def prefetch(maker: BatchMaker, places: Iterator[Place], workers: int) -> Iterator[TrainingBatch]:
    """Yields the batches of some places, made by processes; closing the iterator ends them.

    Args:
        maker: the batch maker, which each process gets.
        places: places of the batches; possibly very many, as each process is only a little ahead.
        workers: number of processes.

    Raises:
        DataError: as `BatchMaker.make`.
    """
    loader: DataLoader[TrainingBatch | str] = DataLoader(
        _Made(maker),
        sampler=places,  # any iterable will do
        batch_size=None,
        num_workers=workers,
        collate_fn=_as_it_is,  # each item is a batch already
        generator=torch.Generator(),
        worker_init_fn=partial(_stay_with, os.getpid()),
        multiprocessing_context="fork",  # modules from files of the recipe are known there already
    )
    # A worker must not receive SIGTERM before it has set up its own handling either.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        batches = iter(loader)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    for made in batches:
        if isinstance(made, str):
            raise DataError(made)
        yield made


class _Made(Dataset[TrainingBatch | str]):
    """Batches by place; a message for a batch that cannot be made."""

    def __init__(self, maker: BatchMaker) -> None:
        self._maker = maker

    def __getitem__(self, place: Any) -> TrainingBatch | str:
        try:
            return self._maker.make(place)
        except TrainingError as error:
            return str(error)


def _as_it_is(made: Any) -> Any:
    return made


def _stay_with(parent: int, worker: int) -> None:
    """Ends this process with its parent, and on a SIGTERM of its parent only, not of the group."""
    if sys.platform == "linux":
        # The loader's own check runs every five seconds only.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def wait() -> None:
        while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent:
            pass
        os._exit(0)

    threading.Thread(target=wait, daemon=True, name=f"sigterm-{worker}").start()
