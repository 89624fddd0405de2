"""What a batch leaves behind for the traces of its requests: moments that were taken anyway."""

from services.errors import BackendError
from services.inference.scheduling.batcher import Batch
from services.inference.scheduling.instance import BatchReport
from services.queueing.records import Lane
from services.tracing.tracer import BatchFacts, Tracer, ns_of


def trace_batch(
    tracer: Tracer, lane: Lane, batch: Batch, report: BatchReport, given_at: float
) -> None:
    """Tells the tracer of a batch, unless none of its requests is traced.

    Args:
        tracer: told.
        lane: that ran it.
        batch: what ran.
        report: how it went.
        given_at: when its instance got it; a `time.monotonic()` second.
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
                failed=sum(isinstance(result, BackendError) for result in report.results),
                given_ns=ns_of(given_at),
                started_ns=ns_of(report.started_at),
                ended_ns=ns_of(report.started_at + report.seconds),
            )
        )
