"""What turns responses into better weights: reward, trainer, checkpoints."""

from enum import StrEnum

from pydantic import Field

from longshore.api.base import ApiModel


class RewardKind(StrEnum):
    """How a response is scored."""

    TASK = "Task"
    MATHS = "Maths"
    PYTHON = "Python"


class OnRewardError(StrEnum):
    """What a reward that raises, or returns no finite number, does to the job."""

    FAIL = "Fail"
    REPLACE = "Replace"


class Reward(ApiModel):
    """Scores a response with a number. It never becomes zero because the verifier broke."""

    kind: RewardKind = RewardKind.TASK
    """Task: the built-in task's own; Maths: answers compared as mathematics; Python: `importPath`."""
    import_path: str | None = Field(default=None, max_length=256, pattern=r"^[\w.]+:[\w]+$")
    """For kind Python: `package.module:function`, called with (prompt, response, answer)."""
    timeout_s: float = Field(default=2.0, gt=0, le=3_600, alias="timeoutSeconds")
    """Scoring of one response is cut off after so many seconds and counts as wrong."""
    on_error: OnRewardError = OnRewardError.FAIL
    """Fail: the job fails with the sample; Replace: the group is replaced by a fresh draw, and counted."""
    pods: int = Field(default=1, ge=0, le=1_024)
    """Reward pods; 0: the coordinator's pod scores."""
    workers_per_pod: int = Field(default=2, ge=1, le=256)
    """Scoring processes per reward pod."""


class TrainerBackend(StrEnum):
    """Training library."""

    TORCH = "Torch"
    FAKE = "Fake"


class Trainer(ApiModel):
    """The trainer: data-parallel replicas on the GPUs of the workers."""

    backend: TrainerBackend = TrainerBackend.TORCH
    """Torch: Hugging Face models; Fake: deterministic arithmetic without a model, for tests around it."""
    data_parallel_size: int | None = Field(default=None, ge=1, le=65_536)
    """Replicas; unset: one per worker GPU (one per pod where pods have none)."""
    max_tokens_per_micro_batch: int = Field(default=16_384, ge=1, le=100_000_000)
    """Padded tokens of one forward and backward pass; a longer response is taken alone."""


class Checkpoint(ApiModel):
    """Checkpoints lie in the storage of the job, each one atomically published directory."""

    every_steps: int = Field(default=10, ge=1, le=1_000_000)
    """Steps from one checkpoint to the next; the last step always writes one."""
    keep: int = Field(default=2, ge=1, le=1_000)
    """Newest checkpoints that are kept."""
