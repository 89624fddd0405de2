"""Statistics of versions, as Triton's `ModelStatistics` message. Pure.

Requests are counted at their answers, and their waits and runs where they run; so a request that
waits is in neither.
"""

from protos import open_inference_pb2 as pb
from services.telemetry.model_figures import (
    ANSWER_S,
    ANSWERS,
    EMPTY,
    INFER_S,
    INPUT_S,
    OUTPUT_S,
    REQUESTS,
    RUNS,
    VersionFigures,
)

_TIMES = (("compute_input", INPUT_S), ("compute_infer", INFER_S), ("compute_output", OUTPUT_S))


def statistics_message(figures: VersionFigures) -> pb.ModelStatistics:
    """Returns the statistics of a version."""
    found = pb.ModelStatistics(
        name=figures.model,
        version=figures.version,
        last_inference=int(figures.last_run_at * 1000),
        inference_count=int(figures.rows),
        execution_count=int(figures.runs),
    )
    requests = sum(size[REQUESTS] for size in figures.sizes.values())
    failures = figures.failed.values()
    stats = found.inference_stats
    stats.success.CopyFrom(_duration(figures.answered, figures.answered_s))
    stats.fail.CopyFrom(_duration(sum(n for n, _ in failures), sum(s for _, s in failures)))
    stats.queue.CopyFrom(_duration(figures.queued, figures.queued_s))
    for name, field in _TIMES:
        getattr(stats, name).CopyFrom(_duration(requests, figures.of_requests_s(field)))
    stats.cache_hit.SetInParent()
    stats.cache_miss.SetInParent()
    for rows, size in sorted(figures.sizes.items()):
        batch = found.batch_stats.add(batch_size=rows)
        for name, field in _TIMES:
            getattr(batch, name).CopyFrom(_duration(size[RUNS], size[field]))
    for number, place in enumerate(figures.places):
        _add_place(found.response_stats[str(number)], place)
    return found


def _add_place(response: pb.InferResponseStatistics, place: list[float]) -> None:
    answers = _duration(place[ANSWERS], place[ANSWER_S])
    response.compute_infer.CopyFrom(answers)
    response.compute_output.CopyFrom(_duration(place[ANSWERS], 0))
    response.success.CopyFrom(answers)
    response.fail.SetInParent()
    response.empty_response.CopyFrom(_duration(place[EMPTY], 0))
    response.cancel.SetInParent()


def _duration(count: float, seconds: float) -> pb.StatisticDuration:
    return pb.StatisticDuration(count=int(count), ns=max(int(seconds * 1e9), 0))
