"""Names of all keys and channels in Redis.

All keys of a model share a hash tag, so that a cluster keeps them in one slot and one script may
touch them all; so do all keys of one gateway, and those of the fleet.
"""

from services.queueing.records import HIGHEST_PRIORITY, LOWEST_PRIORITY, Lane

ROOT = "flambeau"
GROUP = "workers"
"""The consumer group of every stream."""
HANDED_BACK = "handed-back"
"""Consumer of requests that a worker took, did not begin, and returned."""

FLEET_KEYS = (f"{ROOT}:{{fleet}}:workers", f"{ROOT}:{{fleet}}:announcements")
"""Sorted set of the workers, each with the microsecond until which it counts; and a hash of what
each of them serves."""

SETTINGS_KEY = f"{ROOT}:{{fleet}}:settings"
"""Hash of the settings of logs and traces that callers have changed."""

MODELS_KEY = f"{ROOT}:{{fleet}}:models"
"""Hash of the models that callers have loaded, each with the revision of its load."""


def figures_key(worker: str) -> str:
    """Returns the key of a worker's figures for the statistics calls."""
    return f"{ROOT}:{{fleet}}:figures:{worker}"


def evidence_key(rollout_id: str) -> str:
    """Returns the key of a hash: the counts of a rollout by gateway."""
    return f"{ROOT}:{{fleet}}:evidence:{rollout_id}"


def callers_keys(model: str) -> tuple[str, str]:
    """Returns the keys of a model's callers, as gateways report them.

    Sorted set of the gateways, each with the second of its report; and a hash of the reports.
    """
    return f"{ROOT}:{{fleet}}:callers-times:{model}", f"{ROOT}:{{fleet}}:callers:{model}"


REQUESTS_LIVE_S = 86_400
JOBS_LIVE_S = 30 * 86_400
"""Expiry of a lane's waiting requests when no worker serves it."""
JOB = "job"
"""Stands for the gateway in the return address of a job: its outcome is kept, and not sent."""
NOBODY = "nobody"
"""Stands for the gateway in the return address of what a person runs again: its caller has had an
answer, so its outcome is dropped."""
NOTICE_CHANNELS = f"{ROOT}:*:cancelled"
"""Pattern of the channels of notices; see `LaneKeys.notices`."""


def version_text(lane: Lane) -> str:
    """Returns a lane's name within its model: `3`, or `3@onnx-int8` for one artifact."""
    return f"{lane.version}@{lane.artifact}" if lane.artifact else str(lane.version)


def lane_of(model: str, text: str) -> Lane:
    """Parses a name of `version_text` to its lane."""
    version, _, artifact = text.partition("@")
    return Lane(model, int(version), artifact)


class LaneKeys:
    """The keys of one lane: of its requests, or of its jobs.

    Attributes:
        workers: sorted set of who serves it, each with the microsecond until which it counts.
        streams: its requests, a stream for each priority, the highest first; or its jobs.
        payload: prefix of the keys of large payloads.
        notices: channel on which gateways publish lines about their requests, `GATEWAY NUMBER` for
            one that is cancelled, `GATEWAY NUMBER COUNT` for parts of its answer that were read.
        dead: stream of the requests that ended their workers.
        lives_s: expiry of all its keys when no worker serves the lane.
        jobs: True for the keys of its jobs.
    """

    __slots__ = (
        "_owner", "_steps", "dead", "jobs", "lives_s", "notices", "payload", "streams", "workers",
    )  # fmt: skip

    def __init__(self, lane: Lane, jobs: bool = False) -> None:
        tag = f"{ROOT}:{{{lane.model}}}:{version_text(lane)}"
        priorities = range(HIGHEST_PRIORITY, LOWEST_PRIORITY + 1)
        own = f"{tag}:jobs" if jobs else tag
        self.workers = f"{own}:workers"
        self.streams = (own,) if jobs else tuple(f"{tag}:requests:{p}" for p in priorities)
        self.payload = f"{own}:payload"
        self.notices = f"{own}:cancelled"
        self.dead = f"{tag}:dead"
        self._steps, self._owner = f"{tag}:steps:", f"{tag}:sequence:"
        self.jobs = jobs
        self.lives_s = JOBS_LIVE_S if jobs else REQUESTS_LIVE_S

    def steps(self, worker: str) -> str:
        """Returns the key of the stream of steps whose sequences a worker owns."""
        return f"{self._steps}{worker}"

    def owner(self, sequence: str) -> str:
        """Returns the key of the worker that owns a sequence."""
        return f"{self._owner}{sequence}"

    def job_payload(self, number: int) -> str:
        """Returns the key of a job's payload, if it is large."""
        return f"{self.payload}:{number:016x}"


class JobKeys:
    """The keys of a model's jobs, in one slot with its lanes.

    Attributes:
        by_time: sorted set of their numbers by the microsecond in which they were made.
        webhooks: stream of those that are over and have a webhook.
        finished: channel that names those that are over.
    """

    __slots__ = ("_tag", "by_time", "finished", "webhooks")

    def __init__(self, model: str) -> None:
        self._tag = f"{ROOT}:{{{model}}}"
        self.by_time = f"{self._tag}:jobs-by-time"
        self.webhooks = f"{self._tag}:webhooks"
        self.finished = f"{self._tag}:finished"

    def job(self, number: int) -> str:
        """Returns the key of a job's hash."""
        return f"{self._tag}:job:{number:016x}"

    def outcome(self, number: int, attempt: str) -> str:
        """Returns the key of a job's outcome, if it is large."""
        return f"{self._tag}:job-outcome:{number:016x}:{attempt}"

    def same(self, idempotency_key: str) -> str:
        """Returns the key that maps an idempotency key to its job."""
        return f"{self._tag}:job-key:{idempotency_key}"


FINISHED_CHANNELS = f"{ROOT}:*:finished"
"""Pattern of the channels on which finished jobs are published."""


def replies_key(gateway: str) -> str:
    """Returns the key of the list of a gateway's outcomes."""
    return f"{ROOT}:{{{gateway}}}:replies"


def large_reply_key(gateway: str, number: int, attempt: str) -> str:
    """Returns the key of an outcome that is too large for the list."""
    return f"{ROOT}:{{{gateway}}}:reply:{number}:{attempt}"


def large_replies_key(gateway: str) -> str:
    """Returns the key of a sorted set: keys of a gateway's large outcomes with their bytes."""
    return f"{ROOT}:{{{gateway}}}:large-replies"


def alive_key(gateway: str) -> str:
    """Returns the key of a gateway's heartbeat."""
    return f"{ROOT}:{{{gateway}}}:alive"
