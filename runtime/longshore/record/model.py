"""The record of a round, as it is stored: `rounds/round-000012.json.gz`.

Times are seconds since the step began. Fields may be added: a reader ignores those that it does not know.
"""

import gzip
import zlib
from enum import StrEnum
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict

from longshore.api.names import Component
from longshore.api.round_status import RoundKind

DIRECTORY: Final = "rounds"
"""Below the output of a job."""
PREFIX: Final = "round-"
SUFFIX: Final = ".json.gz"


def file_name(step: int) -> str:
    """Return the name of the file of a step. Names sort by step, up to step 999,999."""
    return f"{PREFIX}{step:06d}{SUFFIX}"


def step_of(name: str) -> int | None:
    """Return the step of a file name, or None if it is not the name of a record."""
    number = name.removeprefix(PREFIX).removesuffix(SUFFIX)
    return int(number) if number.isdecimal() and file_name(int(number)) == name else None


class PhaseName(StrEnum):
    """Parts of a step, one after the other."""

    REGROUP = "regroup"
    REFUSED = "refused"
    """A round that was not trained on, since engines and trainers disagreed about log-probabilities."""
    ROLLOUT = "rollout"
    REWARD = "reward"
    """Waiting for rewards after the rollout."""
    TRAIN = "train"
    PUBLISH = "publish"


class LaneKind(StrEnum):
    """Kinds of lanes."""

    ENGINE = "engine"
    TRAINER = "trainer"
    """A replica."""


class LaneState(StrEnum):
    """What an engine or a trainer replica does."""

    SAMPLING = "sampling"
    TRAINING = "training"
    ASLEEP = "asleep"
    IDLE = "idle"
    REGROUPING = "regrouping"
    PUBLISHING = "publishing"
    REPURPOSING = "repurposing"
    """Its pod leaves the rollout."""
    LOST = "lost"


class StayEnd(StrEnum):
    """How a response left an engine."""

    FINISHED = "finished"
    ABORTED = "aborted"
    MOVED = "moved"
    """It continued on another engine."""
    LOST = "lost"
    """With its engine: it began again elsewhere."""
    TURNED = "turned"
    """It went to its environment after a turn, and has not ended on an engine."""


class RecordOutcome(StrEnum):
    """What became of a response or of a group."""

    ACCEPTED = "accepted"
    """Trained on."""
    ZERO_VARIANCE = "zero_variance"
    """Left out by dynamic sampling, since the rewards of the group are equal."""
    REJECTED = "rejected"
    """Its rewards could not be computed."""
    DEFERRED = "deferred"
    """Its draw waits for a later round."""
    KEPT = "kept"
    """Its tokens wait for a later round, which continues them or, if it had finished, trains on them."""
    UNUSED = "unused"


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class StepPhase(_Part):
    """A part of the step."""

    name: PhaseName
    start_s: float
    end_s: float


class Lane(_Part):
    """An engine or a trainer replica."""

    lane: int
    """Place among the lanes of the record."""
    kind: LaneKind
    number: int
    """Number of the engine or replica."""
    pods: tuple[int, ...]
    component: Literal[Component.WORKER, Component.TRAINER]
    gpus: tuple[int, ...]
    """GPUs in each of its pods; empty where these have none, or pretended ones."""


class Interval(_Part):
    """What a lane does from when to when; the intervals of a lane cover the step without overlap."""

    lane: int
    state: LaneState
    start_s: float
    end_s: float


class Stay(_Part):
    """A response on an engine: one that migrates has several stays."""

    response: str
    """Identity of the response, `epoch-index-number`."""
    engine: int
    start_s: float
    end_s: float
    tokens: int
    """Tokens of the response when it left."""
    end: StayEnd
    environment_s: float = 0.0
    """Time from the end of the stay until the environment of an episode had answered its turn."""


class ResponseRow(_Part):
    """A response that the round started."""

    response: str
    prompt: int
    """Row of the data."""
    tokens: int
    finish: Literal["stop", "length", "abort"]
    outcome: RecordOutcome
    reward: float | None
    engine_s: float
    """Time on engines, waiting there included."""
    turns: int = 0
    """Turns of an episode that is over; 0 for any other response."""
    observed_tokens: int = 0
    """Those of `tokens` that the environment said."""
    environment_s: float = 0.0
    """Time that the environment took; of an episode that was cut off, so far, with waits for a place in a pod."""

    @property
    def environment_share(self) -> float:
        """Share of the time of an episode that its environment took; the rest it was on engines."""
        return self.environment_s / (self.environment_s + self.engine_s) if self.environment_s else 0.0


class GroupRow(_Part):
    """A draw of which the round started responses."""

    draw: str
    outcome: RecordOutcome
    responses: int
    """That were started."""
    scored_s: float | None
    """When it had its rewards."""
    accepted_s: float | None
    """When the trainer could have it."""


class RoundRecord(_Part):
    """A round that was trained on."""

    version: Literal[1] = 1
    step: int
    attempt: int
    kind: RoundKind
    started: float
    """Unix time at which the step began, in seconds."""
    duration_s: float
    bubble_share: float
    num_preemptions: int
    queue_length: int
    """Long-prompt queue after the step."""
    phases: tuple[StepPhase, ...]
    lanes: tuple[Lane, ...]
    intervals: tuple[Interval, ...]
    requests: tuple[Stay, ...]
    responses: tuple[ResponseRow, ...]
    groups: tuple[GroupRow, ...]

    def to_bytes(self) -> bytes:
        """Return the content of the file; equal records give equal bytes."""
        return gzip.compress(self.model_dump_json().encode(), compresslevel=6, mtime=0)

    @classmethod
    def from_bytes(cls, content: bytes) -> "RoundRecord":
        """Read what `to_bytes` returned; raises ValueError for anything else."""
        try:
            return cls.model_validate_json(gzip.decompress(content))
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"it is no record of a round: {error}") from error
