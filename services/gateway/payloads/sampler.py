"""Samples payloads: inputs and outputs of some requests, for inspection.

In: admitted requests, and their outcomes, on the event loop. Out: lines, to a model store,
from a thread of its own.

Rules:
- a caller gets its response before its request is sampled, and sampling fails no request;
- the bytes copied on the event loop and the waiting samples are limited; the rest is dropped and
  counted, never awaited;
- only requests that ran, or timed out, are sampled: their names, datatypes and shapes are the
  signature's, and no name that a caller made up becomes a folder.
"""

import contextlib
import logging
import random
import secrets
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple

from prometheus_client import Counter

from model_store.samples.payload_sample import PayloadSample, SampleLimits
from model_store.samples.payload_samples import SampleWriter
from model_store.storage.storage import Storage
from services.access.rates import Bucket
from services.errors import BackendError, DeadlineExceededError, ServingError
from services.gateway.admission import InferCall
from services.gateway.inference import Inference
from services.gateway.payloads.rule import PayloadRule, rule_of
from services.gateway.payloads.tensors import NamedTensor, TakenTensor, take
from services.queueing.directory import Directory
from services.queueing.memory_queue import Done, Outcome
from services.queueing.records import InferReply, Lane, ServedVersion
from services.telemetry.metrics import UNSAMPLED

logger = logging.getLogger("flambeau.samples")

WRITE_EVERY_S = 5.0
WRITE_TO_BUCKET_EVERY_S = 60.0
"""A bucket cannot append: each write downloads and uploads the newest file."""
RETAIN_EVERY_S = 600.0
"""Interval of the search for expired samples in the store."""
MAX_WAITING_BYTES = 32 * 2**20
MAX_WAITING = 1024
"""Values, and samples, that wait to be written; further ones are dropped."""
WRITE_AT_ONCE_BYTES = 4 * 2**20
SAMPLED_ANSWERS = 16
"""Answers of one request whose outputs are sampled; further ones are only counted."""
LAST_WRITE_S = 3.0
"""Time that the shutdown of the process waits for the remaining samples."""


class Taken(NamedTuple):
    """A sampled request to be written."""

    lane: Lane
    artifact: str
    request_id: str
    trace_id: str
    protocol: str
    status: str
    error: str
    ended_at: float
    """Second since 1970."""
    duration_s: float
    inputs: list[TakenTensor]
    outputs: list[TakenTensor]
    answers: int

    def line(self) -> bytes:
        """Returns the line of the sample."""
        return PayloadSample(
            time=datetime.fromtimestamp(self.ended_at - self.duration_s, UTC),
            request_id=self.request_id,
            trace_id=self.trace_id,
            model=self.lane.model,
            version=self.lane.version,
            artifact=self.artifact,
            protocol="grpc" if self.protocol == "grpc" else "rest",
            status=self.status,
            error=self.error,
            duration_ms=round(self.duration_s * 1000, 3),
            inputs=tuple(tensor.sampled() for tensor in self.inputs),
            outputs=tuple(tensor.sampled() for tensor in self.outputs),
            answers=None if self.answers == (not self.error) else self.answers,
        ).to_line()


class Chosen:
    """A request that is sampled, and copies of its tensors so far.

    Attributes:
        rule: rule of its model.
        lane: version that runs it.
        inputs: its inputs.
        outputs: outputs of its answers, as far as they were copied.
        answers: number of its answers.
    """

    __slots__ = ("answers", "inputs", "lane", "outputs", "rule", "taken_bytes")

    def __init__(self, rule: PayloadRule, lane: Lane) -> None:
        self.rule = rule
        self.lane = lane
        self.answers = self.taken_bytes = 0
        self.inputs: list[TakenTensor] = []
        self.outputs: list[TakenTensor] = []

    def take(self, call: InferCall, reply: InferReply | None) -> None:
        """Copies the inputs, unless that was done, and the outputs of a reply."""
        tensors: list[NamedTensor] = []
        if not self.inputs:
            tensors += [NamedTensor(each.name, each.datatype, each.array) for each in call.inputs]
        inputs = len(tensors)
        if reply is not None and reply.outputs:
            self.answers += 1
            if self.answers <= SAMPLED_ANSWERS:
                types = reply.datatypes
                tensors += [NamedTensor(name, types[name], x) for name, x in reply.outputs.items()]
        taken = take(self.rule, tensors, self.taken_bytes)
        self.taken_bytes += sum(tensor.value_bytes for tensor in taken)
        self.inputs += taken[:inputs]
        self.outputs += taken[inputs:]


class PayloadSampler:
    """The sampler of one gateway.

    Args:
        rules: rules by patterns of model names; the first match is a model's rule.
        storage: store of the samples.
        directory: models that are served.
        samples: counter of written samples, by `model` and `version`.
        dropped: counter of dropped samples, by `reason`.
    """

    def __init__(
        self,
        rules: Mapping[str, PayloadRule],
        storage: Storage,
        directory: Directory,
        samples: Counter,
        dropped: Counter,
    ) -> None:
        self._rules = rules
        self._writer = SampleWriter(storage, secrets.token_hex(4))
        self._write_every_s = WRITE_EVERY_S if storage.is_local else WRITE_TO_BUCKET_EVERY_S
        self._directory = directory
        self._samples = samples
        self._dropped = {reason: dropped.labels(reason) for reason in UNSAMPLED}
        self._of_model: dict[str, tuple[PayloadRule | None, Bucket | None]] = {}
        """Results of `_rule` for served models."""
        self._waiting: deque[Taken] = deque()
        largest = max(rule.max_sample_bytes for rule in rules.values())
        self._max_waiting = min(MAX_WAITING, max(2, MAX_WAITING_BYTES // largest))
        self._wake, self._is_over, self._is_failing = threading.Event(), False, False

    def watch(self, call: InferCall, inference: Inference, answered: Done) -> Done:
        """Returns a callback for a request's outcome: it calls the caller, and then the sampler.

        Args:
            call: the request.
            inference: inference of the request.
            answered: callback of the caller.
        """
        return partial(self._answered, call, inference, answered, [])

    def _answered(
        self,
        call: InferCall,
        inference: Inference,
        answered: Done,
        chosen: "list[Chosen | None]",
        outcome: Outcome,
    ) -> None:
        """Answers the caller, then samples.

        Args:
            call: request.
            inference: inference of the request.
            answered: callback of the caller.
            chosen: whether it is sampled, once its first answer has come.
            outcome: answer, or error.
        """
        answered(outcome)
        try:
            if not chosen:
                chosen.append(self._choose(call, outcome))
            if (one := chosen[0]) is None:
                return
            reply = outcome if isinstance(outcome, InferReply) else None
            one.take(call, reply)
            if reply is None or reply.is_last:
                self._keep(one, inference, outcome)
        except Exception:  # an odd request must not harm others of its batch
            self._dropped["failed"].inc()
            logger.exception("a request could not be sampled")

    def _choose(self, call: InferCall, outcome: Outcome) -> Chosen | None:
        """Chooses requests at random, as their model's rule says, by their first outcome."""
        if isinstance(outcome, InferReply):
            lane = outcome.lane
        elif isinstance(outcome, BackendError | DeadlineExceededError):
            served = self._served(call.model, call.version)
            if served is None:
                return None
            lane = served.lane
        else:
            return None
        rule, bucket = self._of_model.get(lane.model) or self._rule(lane.model)
        if rule is None or bucket is None or random.random() >= rule.share:  # noqa: S311
            return None
        if bucket.take(1.0, time.monotonic()):
            self._dropped["rate_limited"].inc()
        elif len(self._waiting) >= self._max_waiting:
            self._dropped["queue_full"].inc()
        else:
            return Chosen(rule, lane)
        return None

    def _keep(self, chosen: Chosen, inference: Inference, outcome: Outcome) -> None:
        """Queues a sample whose request is over."""
        if len(self._waiting) >= self._max_waiting:
            self._dropped["queue_full"].inc()
            return
        status, error = inference.protocol.ok, ""
        if isinstance(outcome, ServingError):
            status, error = inference.protocol.code(outcome), type(outcome).__name__
        lane = chosen.lane
        self._waiting.append(
            Taken(
                lane=lane,
                artifact=self._artifact(lane) if isinstance(outcome, InferReply) else "",
                request_id=inference.request_id,
                trace_id=inference.trace_id,
                protocol=inference.protocol.name,
                status=status,
                error=error,
                ended_at=time.time(),
                duration_s=time.monotonic() - inference.received_at,
                inputs=chosen.inputs,
                outputs=chosen.outputs,
                answers=chosen.answers,
            )
        )
        if len(self._waiting) == self._max_waiting // 2:
            self._wake.set()

    def _artifact(self, lane: Lane) -> str:
        """Returns the artifact that runs in a lane; empty if it is no longer served."""
        served = self._served(lane.model, str(lane.version))
        if served is None:
            return ""
        if not lane.artifact:
            return served.artifact
        return next((known.name for known in served.artifacts if known.lane == lane), "")

    def _served(self, model: str, version: str) -> ServedVersion | None:
        try:
            return self._directory.find(model, version)
        except ServingError:
            return None

    def _rule(self, model: str) -> tuple[PayloadRule | None, Bucket | None]:
        rule = rule_of(self._rules, model)
        bucket = Bucket(rule.max_per_minute / 60, time.monotonic()) if rule else None
        found = self._of_model[model] = rule, bucket
        return found

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Writes samples inside the context, and the remaining ones at its end."""
        thread = threading.Thread(target=self._work, name="samples", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._is_over = True
            self._wake.set()
            thread.join(LAST_WRITE_S)

    def _work(self) -> None:
        """Runs the writing thread."""
        retain_at = time.monotonic()
        while not self._is_over:
            if time.monotonic() >= retain_at:
                retain_at = time.monotonic() + RETAIN_EVERY_S
                self._retain()
            self._wake.wait(self._write_every_s)
            self._wake.clear()
            self._write()
        self._write()

    def _write(self) -> None:
        """Writes all waiting samples, in groups."""
        while self._waiting:
            lines: dict[Lane, list[bytes]] = {}
            size = 0
            while self._waiting and size < WRITE_AT_ONCE_BYTES:
                taken = self._waiting.popleft()
                try:
                    line = taken.line()
                except Exception:  # an odd output must not end all sampling
                    self._dropped["failed"].inc()
                    logger.exception("a sample could not be written")
                    continue
                lines.setdefault(taken.lane.default, []).append(line)
                size += len(line)
            for lane, own in lines.items():
                self._append(lane, own)

    def _append(self, lane: Lane, lines: list[bytes]) -> None:
        limits = self._limits(lane.model)
        assert limits is not None
        try:
            self._writer.append(lane.model, lines, limits)
        except Exception as error:  # a store's error must not end all sampling
            self._dropped["store_failed"].inc(len(lines))
            self._tell(error)
        else:
            self._is_failing = False
            self._samples.labels(lane.model, str(lane.version)).inc(len(lines))

    def _retain(self) -> None:
        try:
            self._writer.retain(self._limits)
        except Exception as error:
            self._tell(error)

    def _limits(self, model: str) -> SampleLimits | None:
        rule = rule_of(self._rules, model)
        return rule.limits() if rule is not None else None

    def _tell(self, error: Exception) -> None:
        """Logs a line when the store begins to fail; counters cover the rest."""
        if not self._is_failing:
            self._is_failing = True
            logger.warning("samples cannot be stored", extra={"reason": str(error)})
