"""Processes that make batches ahead of the loop, by torch's `DataLoader`.

In: what makes a batch, and the places of those that are wanted. Out: the batches, in that order.

Rules kept here: the loader has a generator of its own, as it would draw from the one that dropout
draws from; a process ends with the one that started it, at once, as it holds that one's lock too;
and it ends by nobody else's SIGTERM, which asks that one to write a checkpoint first.
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
"""Of prctl(2)."""


def prefetch(maker: BatchMaker, places: Iterator[Place], workers: int) -> Iterator[TrainingBatch]:
    """The batches of some places, made by processes; closing the iterator ends them.

    Args:
        maker: goes to each of them.
        places: of the batches; it may be very long, as each process is only a little ahead.
        workers: how many processes.

    Raises:
        DataError: as `BatchMaker.make`.
    """
    loader: DataLoader[TrainingBatch | str] = DataLoader(
        _Made(maker),
        sampler=places,  # any iterable will do
        batch_size=None,
        num_workers=workers,
        collate_fn=_as_it_is,  # there is no batch of batches to make
        generator=torch.Generator(),
        worker_init_fn=partial(_stay_with, os.getpid()),
        multiprocessing_context="fork",  # modules from files of the recipe are known there already
    )
    # What a worker starts before it has its own say must not hear SIGTERM either.
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
    """Batches by place; a message, where one cannot be made."""

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
    """Ends this process with its parent, and by a SIGTERM of its parent alone, not of the group."""
    if sys.platform == "linux":
        # The loader's own watch looks every five seconds only.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def wait() -> None:
        while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent:
            pass
        os._exit(0)

    threading.Thread(target=wait, daemon=True, name=f"sigterm-{worker}").start()
