"""Records a batch in the traces of its requests, from timestamps that the worker already took."""

from services.errors import ServingError
from services.inference.scheduling.batch_rules import Batch
from services.inference.scheduling.instance import BatchReport
from services.queueing.records import Lane
from services.tracing.tracer import BatchFacts, Tracer, ns_of


def trace_batch(
    tracer: Tracer, lane: Lane, batch: Batch, report: BatchReport, given_at: float
) -> None:
    """Reports a batch to the tracer, if any of its requests is traced.

    Args:
        tracer: receiver of the batch's facts.
        lane: the lane that ran the batch.
        batch: the batch that ran.
        report: outcome of the run.
        given_at: time at which the instance received the batch; a `time.monotonic()` second.
    """
    traced = [
        (entry.request.trace, entry.request.rows)
        for entry in batch.entries
        if entry.request.trace is not None
    ]
    if traced:
        tracer.keep(
            BatchFacts(
                lane=lane,
                requests=traced,
                size=len(batch.entries),
                rows=batch.rows,
                padded_rows=batch.padded_rows,
                failed=sum(isinstance(result, ServingError) for result in report.results),
                given_ns=ns_of(given_at),
                started_ns=ns_of(report.started_at),
                ended_ns=ns_of(report.started_at + report.seconds),
            )
        )
