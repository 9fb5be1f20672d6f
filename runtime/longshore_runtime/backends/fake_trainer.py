"""A trainer without a model. Its exact arithmetic shows which samples were trained on, and when.

Weights after an update depend on every sample's identity, tokens, loss mask and advantage and on the denominator, and
not on their order or on the replica that took them: two runs end with equal weights only if they trained on equal
batches.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from longshore.api.objectives.aggregation import token_weight
from longshore.policy.learning_rate import learning_rate
from longshore_runtime.backends.fake_world import FakeWorld
from longshore_runtime.backends.parallel_sizes import ParallelSizes
from longshore_runtime.backends.sums import GradientSums
from longshore_runtime.backends.trainer_protocol import Sample, TrainerOptions, UpdateReport
from longshore_runtime.backends.work_meter import WorkMeter
from longshore_runtime.backends.world import World
from longshore_runtime.trajectories.trajectory import LogProbs

WEIGHT_NAME = "fake.weight"

_SIZE = 8
_MODULUS = 1 << 20
"""Values stay below it, so that fp32 holds them exactly."""
_STATE_FILE = "trainer.json"

_Vector = npt.NDArray[np.int64]


class FakeTrainer:
    """Rank of a trainer without a model (see `Trainer`). It does not read the checkpoint directory that it is given.

    Ranks of one replica that get the same samples count the digests at places of their own.
    """

    def __init__(
        self,
        directory: Path,
        options: TrainerOptions,
        world: World | None = None,
        sizes: ParallelSizes | None = None,
        meter: WorkMeter | None = None,
    ) -> None:
        """Join `world`; the initial weights depend only on the seed."""
        self._meter = meter or WorkMeter()
        world, sizes = world or World(), sizes or ParallelSizes()
        self._options = options
        self._speaks = sizes.is_first_of_replica(world.rank)
        self._own = (np.arange(_SIZE) - world.rank) % sizes.ranks_per_replica == 0
        self._weights = _digest(f"initial/{options.seed}")
        self._gradient = _zeros()
        self._policy_version = 0
        self._world = FakeWorld(world)

    def accumulate(self, samples: Sequence[Sample]) -> GradientSums:
        """Add the digests of samples."""
        self._meter.expect(len(samples))
        self._gradient = (self._gradient + self._digests(samples)) % _MODULUS
        loss = -sum(self._weight(sample) * sample.mean_advantage for sample in samples)
        return GradientSums(
            num_tokens=sum(sample.num_response_tokens for sample in samples),
            num_loss_tokens=sum(sample.num_loss_tokens for sample in samples),
            num_compared_tokens=sum(sample.num_compared_tokens for sample in samples),
            loss=loss,
            policy_loss=loss,
        )

    def log_probs(self, samples: Sequence[Sample]) -> Mapping[int, LogProbs]:
        """Return the log-probabilities that the fake engine gave these tokens."""
        self._meter.expect(len(samples))
        each = self._meter.each(samples, len(samples))
        return {place: sample.trajectory.log_probs for place, sample in enumerate(each)}

    def values(self, samples: Sequence[Sample]) -> Mapping[int, LogProbs]:
        """Return the log-probabilities, which are values as good as any."""
        return self.log_probs(samples)

    def compare(self, samples: Sequence[Sample], denominator: float) -> float:
        """Compare the sums of digests over all ranks."""
        actual, wanted = self._total(self._gradient), self._total(self._digests(samples))
        size = float(np.linalg.norm(wanted)) or denominator
        return float(np.linalg.norm(actual - wanted)) / size

    def update(self, denominator: float) -> UpdateReport:
        """Sum the digests over all ranks, and mix sum and denominator into the weights."""
        assert denominator > 0, "an update needs the denominator of the whole step"
        total = self._total(self._gradient)
        self._weights = (5 * self._weights + total + _digest(f"denominator/{float(denominator)}")) % _MODULUS
        self._policy_version += 1
        self.discard()
        rate = learning_rate(self._options.schedule, self._policy_version)
        return UpdateReport(float(total.sum()) / _MODULUS, rate, self._policy_version)

    @property
    def policy_version(self) -> int:
        """Number of optimizer steps so far."""
        return self._policy_version

    def weights(self) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
        """Yield one small vector, on the replica's first rank."""
        if self._speaks:
            yield WEIGHT_NAME, self._weights.astype(np.float32)

    def tensors(self, *, in_pieces: bool = False) -> Iterator[tuple[str, Any, int | None]]:
        """Yield the same vector on every rank."""
        import torch  # Nothing else of this trainer needs it.

        yield WEIGHT_NAME, torch.from_numpy(self._weights.astype(np.float32)), None

    def begin_save(self, directory: Path) -> Callable[[], None]:
        """Return what writes weights and policy version."""
        state = json.dumps({"weights": self._weights.tolist(), "policy_version": self._policy_version})

        def write() -> None:
            directory.mkdir(parents=True, exist_ok=True)
            (directory / _STATE_FILE).write_text(state)

        return write

    def load(self, directory: Path) -> None:
        """Restore what `begin_save` wrote."""
        state = json.loads((directory / _STATE_FILE).read_text())
        self._weights = np.array(state["weights"], dtype=np.int64)
        self._policy_version = state["policy_version"]
        self._meter.loaded(len(self._weights), len(self._weights))
        self.discard()

    def discard(self) -> None:
        """Drop accumulated samples."""
        self._gradient = _zeros()

    def _digests(self, samples: Sequence[Sample]) -> _Vector:
        each = self._meter.each(samples, len(samples))
        digests = (_digest(_identity(sample)) for sample in each if sample.num_loss_tokens)
        return sum((self._own * digest for digest in digests), _zeros()) % _MODULUS

    def _total(self, values: _Vector) -> _Vector:
        return np.array(self._world.add_up(values.tolist()), dtype=np.int64) % _MODULUS

    def _weight(self, sample: Sample) -> float:
        """Return the weight of all loss-mask tokens of a sample together."""
        number = sample.num_loss_tokens
        aggregation = self._options.objective.aggregation
        return number * token_weight(aggregation, number, sample.share) if number else 0.0

    def sleep(self) -> None:
        """Do nothing: there is no memory to free."""

    def wake(self) -> None:
        """Do nothing: there is no memory to take back."""


def _zeros() -> _Vector:
    return np.zeros(_SIZE, dtype=np.int64)


def _identity(sample: Sample) -> str:
    tokens = f"{sample.prompt_tokens.tolist()}/{sample.trajectory.tokens.tolist()}"
    arrays = sample.advantage, sample.loss_mask, sample.old_log_probs, sample.teacher_log_probs
    advantage, mask, old, taught = (one.tolist() if isinstance(one, np.ndarray) else one for one in arrays)
    return f"{sample.draw}/{sample.index}/{tokens}/{advantage!r}/{mask}/{old}/{taught}"


def _digest(text: str) -> _Vector:
    values = np.frombuffer(hashlib.sha256(text.encode()).digest(), dtype="<u4")
    return values.astype(np.int64) % _MODULUS
