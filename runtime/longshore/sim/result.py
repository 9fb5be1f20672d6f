"""What a simulation tells: a record for every step, and what every GPU did when."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from longshore.api.round_status import RoundKind


class Work(StrEnum):
    """What a GPU does for the job."""

    ROLLOUT = "rollout"
    TRAINING = "training"
    SWITCH = "switch"
    PUBLISH = "publish"


@dataclass(frozen=True)
class GpuSpan:
    """One GPU does one thing for a while."""

    gpu: int
    work: Work
    start_s: float
    end_s: float
    label: str


@dataclass(frozen=True)
class StepRecord:
    """One training step: its rollout, its rewards, its updates, its weight publication."""

    kind: RoundKind
    tp_size: int
    start_s: float
    rollout_s: float
    """Until the batch was complete."""
    reward_wait_s: float
    """From then until all its rewards were there."""
    train_s: float
    """From then until the last update was done."""
    publish_s: float
    """From then until the engines could sample with the new weights."""
    num_trained_samples: int
    num_trained_tokens: int
    """Response tokens of the batch."""
    num_stale_tokens: int
    """Response tokens of the batch that older weights had sampled."""
    num_resumed_tokens: int
    """Tokens that the round before sampled of responses which it cut off, and which went on in this one."""
    max_response_tokens: int
    num_sampled_tokens: int
    """Tokens that the engines sampled in this round."""
    num_dropped_tokens: int
    """Tokens of responses that ended in this round and are neither trained on nor kept."""
    num_launched: int
    num_aborted: int
    num_preemptions: int
    num_zero_variance: int
    """Groups of the batch, or left out of it, whose rewards were all equal."""
    num_correct: int
    """Trained responses with a reward."""
    bubble_share: float
    """Share of GPU time in which a GPU that the job holds did nothing for it."""
    first_dispatch_s: float
    """From the start of the round until the trainer got its first group."""
    trainer_compute_s: float
    """Time in which the trainer computed."""
    scale_downs: tuple[str, ...] = ()
    """Reasons of the repurposings of this round."""
    episodes_s: float = 0.0
    """Time from the beginning to the end of all episodes that ended by themselves."""
    environments_s: float = 0.0
    """The part of it in which their environments were at work."""

    @property
    def step_s(self) -> float:
        """The whole step."""
        return self.rollout_s + self.reward_wait_s + self.train_s + self.publish_s

    @property
    def off_policy_share(self) -> float:
        """Share of trained tokens that older weights had sampled."""
        return self.num_stale_tokens / self.num_trained_tokens if self.num_trained_tokens else 0.0

    @property
    def trainer_waiting_ratio(self) -> float:
        """Ratio wait / (wait + compute) from the start of the round to the end of training.

        Source: RolloutPipe, section 5.1.
        """
        until_trained_s = self.rollout_s + self.reward_wait_s + self.train_s
        return max(0.0, 1 - self.trainer_compute_s / until_trained_s) if until_trained_s else 0.0

    @property
    def rollout_to_train_end_s(self) -> float:
        """Seconds from the start of the round to the end of training (RolloutPipe, section 5.1)."""
        return self.rollout_s + self.reward_wait_s + self.train_s


@dataclass(frozen=True)
class SimResult:
    """A simulated job."""

    num_gpus: int
    steps: tuple[StepRecord, ...]
    spans: tuple[GpuSpan, ...]
    mean_response_tokens: float
    """Mean over the responses, R0 per draw, that a job without any selection would have trained on for these draws."""
    mean_trained_draw_tokens: float
    """The same of the draws that were trained on."""
    num_groups_in_cache: int | None = None
    """GroupPipeline: groups in service that fill the KV cache of an engine, once a round has reported."""

    @property
    def total_s(self) -> float:
        """Whole run."""
        return sum(step.step_s for step in self.steps)

    @property
    def mean_step_s(self) -> float:
        """Mean step time."""
        return self.total_s / len(self.steps)

    @property
    def samples_per_s(self) -> float:
        """Trained samples per second."""
        return sum(step.num_trained_samples for step in self.steps) / self.total_s

    @property
    def tokens_per_s(self) -> float:
        """Trained response tokens per second."""
        return self._num_trained_tokens / self.total_s

    @property
    def bubble_share(self) -> float:
        """Share of GPU time in which a GPU that the job holds did nothing for it."""
        return sum(step.bubble_share * step.step_s for step in self.steps) / self.total_s

    @property
    def environment_share(self) -> float | None:
        """Share of the time of episodes in which their environments were at work; None without episodes."""
        episodes_s = sum(step.episodes_s for step in self.steps)
        return sum(step.environments_s for step in self.steps) / episodes_s if episodes_s else None

    @property
    def gpu_hours(self) -> float:
        """GPUs times hours."""
        return self.num_gpus * self.total_s / 3600

    @property
    def off_policy_share(self) -> float:
        """Share of trained tokens that older weights had sampled."""
        return sum(step.num_stale_tokens for step in self.steps) / self._num_trained_tokens

    @property
    def selection_bias(self) -> float:
        """Mean length of trained responses over that of all responses of the draws in play, less 1."""
        return self._mean_trained_tokens / self.mean_response_tokens - 1

    @property
    def length_bias(self) -> float:
        """Mean length of trained responses over that of all responses of the same draws, less 1.

        It stays, however long the job runs: what a race between responses drops is never trained on. The rest of the
        selection bias is of draws that wait, and fades as they take their turn.
        """
        return self._mean_trained_tokens / self.mean_trained_draw_tokens - 1

    @property
    def _mean_trained_tokens(self) -> float:
        return self._num_trained_tokens / sum(step.num_trained_samples for step in self.steps)

    @property
    def _num_trained_tokens(self) -> int:
        return sum(step.num_trained_tokens for step in self.steps)


@dataclass
class SpanRecorder:
    """Collects spans, and the busy time of the step that runs."""

    keeps_spans: bool = True
    spans: list[GpuSpan] = field(default_factory=list)
    busy_s: float = 0.0

    def busy(self, gpus: Sequence[int], work: Work, start_s: float, end_s: float, label: str) -> None:
        """Record that these GPUs worked."""
        if end_s <= start_s:
            return
        self.busy_s += len(gpus) * (end_s - start_s)
        if self.keeps_spans:
            self.spans += [GpuSpan(gpu, work, start_s, end_s, label) for gpu in gpus]

    def take_busy_s(self) -> float:
        """Return the busy GPU seconds since the last call."""
        busy_s, self.busy_s = self.busy_s, 0.0
        return busy_s
