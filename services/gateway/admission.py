"""Admission: accepts or rejects a decoded request, and delivers its response.

In: an `InferCall`, the same whichever edge decoded it. Out: an `InferReply`, or a `ServingError`.

One request, in order:
1. the gateway must not be draining, nor have `max_in_flight_requests` in flight, and an
   authenticated caller must not exceed its share;
2. the model name and version, and the artifact if one is asked for, are resolved to a lane that
   is ready;
3. names, datatypes, shapes and the batch size are checked against the signature; an authenticated
   caller must be within its rates, which refused requests count against, too;
4. the deadline is set: the caller's, but never later than `request_timeout_s`;
5. the request is enqueued; if the server degrades, the lane of a faster artifact is its fallback
   under overload. A callback delivers its outcome.

Rules: steps 1 to 5 never await, so the lane cannot be unloaded in between; the edge's callback
runs once, and never after the edge cancelled.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from flambeau.protocol.signature import Signature, SignatureError
from flambeau.protocol.tensors import Array
from model_store.rollouts.traffic import Traffic
from services.errors import (
    InvalidRequestError,
    ModelReturningError,
    ServingError,
    ShuttingDownError,
    TooManyInFlightError,
    UnsupportedError,
)
from services.gateway.artifact_preference import ArtifactPreference, faster_artifact, find_lane
from services.gateway.load_waits import ReturningWaits
from services.gateway.request_pacer import RequestPacer
from services.gateway.sliced_work import SlicedWork
from services.gateway.triton.words import Words
from services.queueing.directory import Directory
from services.queueing.memory_queue import Done, Entry, MemoryQueue, Outcome
from services.queueing.records import (
    DEFAULT_PRIORITY,
    JOB_PRIORITY,
    InferReply,
    InferRequest,
    Lane,
    SequenceStep,
    ServedVersion,
)
from services.telemetry.metrics import Metrics
from services.tracing.context import TraceContext

if TYPE_CHECKING:
    from services.access.caller import Caller


MAX_KINDS = 4096
"""Checked kinds of requests cached for one signature; a full cache is cleared."""

_Kind = tuple[tuple[str, str, tuple[int, ...]], ...]
"""Name, datatype and shape of each input."""


class InputTensor(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One decoded input."""

    name: str
    datatype: str
    array: Array


class InferCall(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A request as an edge decoded it; nothing in it has been checked against the model yet."""

    request_id: str
    model: str
    version: str
    """The version as the caller wrote it; empty for the live version."""
    inputs: Sequence[InputTensor]
    outputs: Sequence[str] = ()
    """Names of the requested outputs; empty for all."""
    deadline: float = math.inf
    """The caller's own deadline: `time.monotonic()` second."""
    priority: int = 0
    """1 (first) to 10 (last); 0 for the default."""
    preference: ArtifactPreference | None = None
    """The requested artifact; None for the default one."""
    sequence: SequenceStep | None = None
    """Place in a sequence; None for a request by itself."""
    trace: TraceContext | None = None
    """Trace context of a traced request."""
    caller: "Caller | None" = None
    """The authenticated caller; None where no credential is required."""


KeyOf = Callable[[str, str], str]
"""Returns the value of a `header` or a `parameter` of a request by its name; empty for none."""


class RoutedCall(Protocol):
    """A request on its way to the version that was drawn for it.

    Attributes:
        call: the request, with that version.
    """

    call: InferCall

    def watched(self, done: Done) -> Done:
        """Returns a callback that calls another one, and then counts the outcome."""

    def admitted(self) -> None:
        """Handles that admission has taken the request."""

    def written(self) -> None:
        """Handles that the last answer is encoded and about to be written."""

    def unwritable(self, error: ServingError) -> None:
        """Handles an answer that its edge could not write."""

    def left(self) -> None:
        """Handles a caller that waits no longer: it has disconnected, or its time is over."""


class Router(Protocol):
    """Draws versions of requests that name none (`services/gateway/traffic/`)."""

    def route(self, call: InferCall, traffic: Traffic, key_of: KeyOf) -> RoutedCall | None:
        """Draws the version of a request; None if nothing is to be done about it.

        Raises:
            ServingError: the model is not ready.
        """


class CallerCounts(Protocol):
    """Counts requests for live versions by caller (`services/registry/callers/`)."""

    def is_due(self, model: str, caller: str, now: float) -> bool:
        """Counts a request; returns True if it is to be looked at."""

    def look(
        self,
        model: str,
        caller: str,
        inputs: Sequence[tuple[str, str, tuple[int, ...]]],
        outputs: Sequence[str],
        *,
        is_step: bool,
        signature: Signature,
        now: float,
    ) -> None:
        """Looks at a request that was admitted."""


class _Known:
    """Cache of the kinds of requests of one signature that passed the checks."""

    __slots__ = ("_signature", "kinds")

    def __init__(self, signature: Signature) -> None:
        self._signature = signature
        self.kinds: dict[_Kind, tuple[int, int | None]] = {}

    def rows_of(self, kind: _Kind) -> tuple[int, int | None]:
        """Returns the rows of a kind and, for a padded model, their length; checks new kinds.

        Raises:
            SignatureError: the inputs break a rule of the signature.
        """
        if (found := self.kinds.get(kind)) is not None:
            return found
        given = {name: (datatype, shape) for name, datatype, shape in kind}
        if len(given) != len(kind):
            twice = next(
                name for name, times in Counter(n for n, _, _ in kind).items() if times > 1
            )
            raise SignatureError(f"input '{twice:.200}' occurs twice; give each once")
        signature = self._signature
        rows = signature.check_inputs(given)
        length = signature.length_of({name: shape for name, (_, shape) in given.items()})
        if len(self.kinds) >= MAX_KINDS:
            self.kinds.clear()
        self.kinds[kind] = rows, length
        return rows, length


class Admission:
    """Admits requests; each takes one permit.

    Attributes:
        directory: models that are served.
        turns: schedule in which edges begin received requests.
        work: sliced reading and writing of large bodies.
        draining: True if new requests are refused.
        router: draws versions, where the directory has traffic to share; None to draw none.
        callers: counts requests for live versions by caller; None to count none.
        load_waits: requests that wait for a version that is loaded again.
        mirrored: requests of the queue that no caller waits for; they take no permit.
        request_timeout_s: the server's own limit of a request's time.
    """

    def __init__(
        self,
        directory: Directory,
        queue: MemoryQueue,
        metrics: Metrics,
        *,
        max_in_flight_requests: int,
        request_timeout_s: float,
        degrades: bool = False,
        processes: int = 1,
    ) -> None:
        self.directory = directory
        self.turns = RequestPacer()
        self.work = SlicedWork()
        self.draining = False
        self.router: Router | None = None
        self.callers: CallerCounts | None = None
        self.mirrored = 0
        # Beside those in the queue, so that requests for other versions keep their places.
        self.load_waits = ReturningWaits(directory, max(max_in_flight_requests // 2, 1))
        self._queue = queue
        self._limit = self._max_in_flight = max_in_flight_requests
        self._room = max(1, min(max_in_flight_requests, queue.max_depth) // processes)
        self.request_timeout_s = request_timeout_s
        self._degrades = degrades
        self.words: Words | None = None
        """Messages of requests that a signature refuses, in place of its own."""
        self.error_words: Callable[[ServingError, str, str], ServingError] | None = None
        """Returns an error of a model and a protocol with other words."""
        self._degraded = metrics.degraded
        metrics.in_flight.set_function(lambda: queue.unanswered)
        self._known: dict[int, _Known] = {}
        """Keyed by the identity of a signature, which the value keeps alive."""

    def limit_by_others(self, count: int) -> None:
        """Leaves the room that the requests in flight of other processes leave."""
        self._max_in_flight = self._limit - count

    def refuse_new(self) -> None:
        """Stops admitting requests."""
        self.draining = True
        self.load_waits.end_all()

    def infer(self, call: InferCall, answered: Done, has_waited: bool = False) -> Entry:
        """Admits one request.

        Args:
            call: the request.
            answered: callback, called once on the event loop with the response or the error of
                the queue or worker, perhaps before this returns; never after `Entry.cancel`.
            has_waited: True if it was counted against its caller's rate when it began to wait.

        Raises:
            ServingError: one of the steps above refused it; `answered` is not called.
        """
        if self.draining:
            raise ShuttingDownError("this server is shutting down; send the request to another")
        if self._queue.unanswered - self.mirrored >= self._max_in_flight:
            raise self._too_many()
        now = time.monotonic()
        tenant = None if call.caller is None else call.caller.tenant
        try:
            if tenant is not None and self._queue.unanswered * 2 >= self._room:
                tenant.check_share(self._room)
            served, signature = self.directory.resolve(call.model, call.version)
            rows, length = self._check(call, served.lane, signature)
        except ServingError as error:
            if not (tenant is None or has_waited or isinstance(error, ModelReturningError)):
                tenant.take(0, now)  # invalid requests count, too
            raise
        if tenant is not None and has_waited:
            tenant.take_rows(rows)
        elif tenant is not None:
            tenant.take(rows, now)
        deadline = min(now + self.request_timeout_s, call.deadline)
        lane, degrade_to = served.lane, None
        if call.preference is not None or self._degrades:
            lane, degrade_to, answered = self._by_preference(call.preference, served, answered)
        inputs = call.inputs
        request = InferRequest(
            request_id=call.request_id,
            lane=lane,
            inputs=(
                {inputs[0].name: inputs[0].array}
                if len(inputs) == 1
                else {tensor.name: tensor.array for tensor in inputs}
            ),
            rows=rows,
            deadline=deadline,
            priority=call.priority or DEFAULT_PRIORITY,
            length=length,
            outputs=call.outputs,
            trace=call.trace,
            sequence=call.sequence and _place(call.sequence, signature),
            accuracy=call.preference.accuracy if call.preference is not None else "",
        )
        entry = self._queue.submit(request, answered, degrade_to, now)
        if tenant is not None and not entry.dead:
            entry.holder = tenant
            if not tenant.in_flight:
                tenant.activate()
            tenant.in_flight += 1
        return entry

    def _too_many(self) -> TooManyInFlightError:
        return TooManyInFlightError(
            f"{self._limit} requests are in flight here, the limit; retry later or add servers"
        )

    def check_inputs(
        self,
        model: str,
        version: str,
        caller: "Caller | None",
        inputs: Sequence[tuple[str, str, tuple[int, ...]]],
    ) -> None:
        """Checks the declared names, datatypes and shapes of a large request against its model.

        Avoids reading elements of a request that will be refused; `infer` checks again.

        Raises:
            ServingError: the model is not ready, or the inputs break one of its rules.
        """
        try:
            served, signature = self.directory.resolve(model, version)
            known = self._known.get(id(signature)) or self._learn(signature)
            try:
                known.rows_of(tuple(inputs))
            except SignatureError as error:
                raise self._refusal(served.lane, signature, error, tuple(inputs)) from error
        except ServingError as error:
            if caller is not None and not isinstance(error, ModelReturningError):
                caller.tenant.take(0, time.monotonic())  # as in `infer`
            raise

    def fits(self, call: InferCall) -> bool:
        """Returns True if the version of a request takes it, by its signature.

        Raises:
            ServingError: the version is not ready, or lacks the artifact that is asked for.
        """
        served, signature = self.directory.resolve(call.model, call.version)
        try:
            self._check(call, served.lane, signature)
            find_lane(served, call.preference)
        except InvalidRequestError:
            return False
        return True

    def look_at(self, call: InferCall, counts: CallerCounts, now: float) -> None:
        """Has an admitted request looked at; see `CallerCounts.look`."""
        counts.look(
            call.model,
            "" if call.caller is None else call.caller.name,
            [(tensor.name, tensor.datatype, tensor.array.shape) for tensor in call.inputs],
            call.outputs,
            is_step=call.sequence is not None,
            signature=self.directory.resolve(call.model, call.version)[1],
            now=now,
        )

    def checked(self, call: InferCall) -> InferRequest:
        """Returns a job's request, checked against every rule of its model, for the job queue.

        Takes no permit and stamps no deadline; its rows count against its caller's rate. No rollout
        draws its version: a job without one has the live version.

        Raises:
            ServingError: the model is not ready, or the request breaks one of its rules.
        """
        served, signature = self.directory.resolve(call.model, call.version)
        if signature.sequence is not None:
            raise UnsupportedError(
                f"model {served.lane} keeps state over a sequence of requests, and jobs run in any "
                "order, on any worker; send the steps as requests, each after the answer before it"
            )
        rows, length = self._check(call, served.lane, signature)
        if call.caller is not None:
            call.caller.tenant.take_rows(rows)
        return InferRequest(
            request_id=call.request_id,
            lane=find_lane(served, call.preference),
            inputs={tensor.name: tensor.array for tensor in call.inputs},
            rows=rows,
            deadline=math.inf,
            priority=JOB_PRIORITY,
            length=length,
            outputs=call.outputs,
            accuracy=call.preference.accuracy if call.preference else "",
        )

    def _by_preference(
        self, preference: ArtifactPreference | None, served: ServedVersion, answered: Done
    ) -> tuple[Lane, Lane | None, Done]:
        """Returns a request's lane, its fallback lane under overload, and its callback.

        Raises:
            UnknownArtifactError: the requested artifact is not loaded.
        """
        lane = find_lane(served, preference)
        faster = None
        if self._degrades and not (preference and preference.is_strict):
            faster = faster_artifact(served, lane)
        if preference is None and faster is None:
            return lane, None, answered
        names = {known.lane: known.name for known in served.artifacts}

        def told(outcome: Outcome) -> None:
            """Adds the artifact's name to a response."""
            if isinstance(outcome, InferReply):
                degraded = outcome.lane != lane
                if degraded:
                    self._degraded.labels(lane.model, str(lane.version)).inc()
                if degraded or preference is not None:
                    outcome = msgspec.structs.replace(
                        outcome, artifact=names.get(outcome.lane, ""), degraded=degraded
                    )
            answered(outcome)

        return lane, faster.lane if faster else None, told

    def _check(self, call: InferCall, lane: Lane, signature: Signature) -> tuple[int, int | None]:
        """Checks every rule of the signature. Returns the rows and a padded model's length."""
        known = self._known.get(id(signature)) or self._learn(signature)
        inputs = call.inputs
        kind: _Kind
        if len(inputs) == 1:  # inlined here and in `infer`: the usual case
            kind = ((inputs[0].name, inputs[0].datatype, inputs[0].array.shape),)
        else:
            kind = tuple([(tensor.name, tensor.datatype, tensor.array.shape) for tensor in inputs])
        try:
            found = known.kinds.get(kind) or known.rows_of(kind)  # the former saves a call
            if call.outputs:
                signature.check_outputs(call.outputs)
        except SignatureError as error:
            raise self._refusal(
                lane, signature, error, kind, call.outputs, call.request_id
            ) from error
        return found

    def _refusal(
        self,
        lane: Lane,
        signature: Signature,
        error: SignatureError,
        inputs: _Kind,
        outputs: Sequence[str] = (),
        request_id: str = "",
    ) -> InvalidRequestError:
        words = self.words and self.words(signature, lane.model, request_id, inputs, outputs)
        return InvalidRequestError(words or f"model {lane}: {error}")

    def _learn(self, signature: Signature) -> _Known:
        """Caches a new signature, and evicts those that are no longer served."""
        live = {id(s.signature) for s in self.directory.all_versions()}
        self._known = {key: k for key, k in self._known.items() if key in live}
        known = self._known[id(signature)] = _Known(signature)
        return known


def _place(step: SequenceStep, signature: Signature) -> SequenceStep | None:
    """Returns a step with its model's limit; None if the model has no sequences, as in Triton."""
    sequences = signature.sequence
    if sequences is None:
        return None
    if sequences.max_idle_s == step.idle_s:
        return step
    return msgspec.structs.replace(step, idle_s=sequences.max_idle_s)
