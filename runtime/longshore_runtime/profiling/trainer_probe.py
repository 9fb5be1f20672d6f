"""Measure the trainers, and the work between two rounds: switching GPUs and publishing weights."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from longshore.sim.lengths import LengthModel
from longshore_runtime.backends.trainer_protocol import Sample
from longshore_runtime.clock import Clock
from longshore_runtime.profiling.figures import Figures
from longshore_runtime.profiling.synthetic import Synthetic
from longshore_runtime.rollout.engine_pool import EnginePool
from longshore_runtime.trainer.group import TrainerGroup, shares

Result = TypeVar("Result")

_FIRST_TOKENS: Final = 512
"""Tokens per replica in the update that warms up and says how much fits into the time."""
_MANY_TO_FEW: Final = 3
_SHARE_OF_TIME: Final = 0.1
"""Share of the time for the larger of the updates that are compared."""


@dataclass(frozen=True)
class TrainerLimits:
    """Properties of the trainers of a job."""

    gpus_per_replica: int
    max_tokens_per_micro_batch: int
    lengths: LengthModel
    """Lengths of the responses that they train on."""
    takes_turns: bool = True
    """Whether trainers and engines share their GPUs."""


class TrainerProbe:
    """Measure two updates of different size. They differ only in their tokens, so the optimizer's part cancels.

    This trains the model: weights, optimizer and random state change.
    """

    def __init__(
        self, trainers: TrainerGroup, engines: EnginePool, limits: TrainerLimits, synthetic: Synthetic, clock: Clock
    ) -> None:
        self._trainers = trainers
        self._engines = engines
        self._limits = limits
        self._synthetic = synthetic
        self._clock = clock
        self._few_tokens = 0
        """Tokens per replica in the smaller update; 0: not known yet."""

    def warm_up(self, time_s: float) -> None:
        """Measure updates: the first compiles and allocates; the second shows how large updates may be in the time."""
        self._train(self._samples(_FIRST_TOKENS), Figures())
        samples = self._samples(_FIRST_TOKENS)
        compute_s = self._train(samples, Figures())
        fitting = self._busiest(samples) * _SHARE_OF_TIME * time_s / max(compute_s, 1e-6)
        most = min(_MANY_TO_FEW * self._limits.max_tokens_per_micro_batch, int(fitting))
        self._few_tokens = max(_FIRST_TOKENS, most // _MANY_TO_FEW)

    def measure(self, figures: Figures) -> None:
        """Measure everything once."""
        assert self._few_tokens, "warm_up comes first"
        few, many = self._samples(self._few_tokens), self._samples(_MANY_TO_FEW * self._few_tokens)
        few_s, many_s = self._train(few, figures), self._train(many, figures)
        more_tokens = self._busiest(many) - self._busiest(few)
        if many_s > few_s and more_tokens > 0:
            tokens_per_s = more_tokens / (many_s - few_s)
            figures.scalar("train_tokens_per_s", tokens_per_s / self._limits.gpus_per_replica)
            figures.scalar("optimizer_s", max(0.0, few_s - self._busiest(few) / tokens_per_s))

    def publish(self, figures: Figures) -> None:
        """Publish the weights of the trainers to the engines, which then take requests."""
        version = self._trainers.policy_version()
        published = self._timed(lambda: self._trainers.weights(version))
        if self._limits.takes_turns:
            figures.scalar("to_rollout_s", self._seconds(self._to_rollout))
        weights, collect_s = published
        figures.scalar("publish_s", collect_s + self._seconds(lambda: self._engines.publish(weights)))

    def _train(self, samples: list[Sample], figures: Figures) -> float:
        """Measure one update with the switches around it; return the seconds that the busiest replica worked."""
        if self._limits.takes_turns:
            figures.scalar("to_training_s", self._seconds(self._to_training))
        trained = self._trainers.train(samples)
        self.publish(figures)
        return trained.compute_s

    def _to_training(self) -> None:
        self._engines.sleep()
        self._trainers.wake()

    def _to_rollout(self) -> None:
        self._trainers.sleep()
        self._engines.wake()

    def _samples(self, tokens_per_replica: int) -> list[Sample]:
        return self._synthetic.samples(self._limits.lengths, tokens_per_replica * self._trainers.num_replicas)

    def _busiest(self, samples: list[Sample]) -> int:
        """Return the tokens of the replica that has most."""
        parts = shares(samples, self._trainers.num_replicas)
        return max(sum(one.num_tokens for one in part) for part in parts)

    def _seconds(self, work: Callable[[], None]) -> float:
        return self._timed(work)[1]

    def _timed(self, work: Callable[[], Result]) -> tuple[Result, float]:
        started_s = self._clock.now_s()
        result = work()
        return result, self._clock.now_s() - started_s
