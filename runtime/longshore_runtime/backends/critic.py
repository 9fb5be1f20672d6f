"""A critic, which learns the value of every state of a response, and the trainer of a policy that has one."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from longshore.api.objectives.with_critic import AT, ObjectiveWithCritic
from longshore_runtime.backends.causal_lm import CausalLM
from longshore_runtime.backends.losses import by_sample
from longshore_runtime.backends.parallel_sizes import ParallelSizes
from longshore_runtime.backends.sums import CriticSums, GradientSums
from longshore_runtime.backends.torch_replica import Replica
from longshore_runtime.backends.torch_trainer import MicroBatch, TorchTrainer
from longshore_runtime.backends.trainer_protocol import Sample, TrainerOptions, UpdateReport
from longshore_runtime.backends.value_model import ValueModel
from longshore_runtime.backends.work_meter import WorkMeter
from longshore_runtime.backends.world import World
from longshore_runtime.errors import UserError
from longshore_runtime.trajectories.trajectory import LogProbs

_DIRECTORY: Final = "critic"
"""Directory of the critic in that of a checkpoint."""


def value_losses(values: Tensor, old_values: Tensor, returns: Tensor, clip: float) -> tuple[Tensor, Tensor]:
    """Compute the losses of values, max((value - return)^2, (clipped value - return)^2) / 2, and which are clipped.

    A value is clipped to the distance `clip` from what it was at the start of the step. All tensors are [tokens].
    """
    errors = (values - returns).square()
    bounded = (torch.clamp(values, old_values - clip, old_values + clip) - returns).square()
    return 0.5 * torch.maximum(errors, bounded), bounded > errors


class Critic(TorchTrainer):
    """Trainer of a value model: it differs from that of a policy in model and loss.

    The loss of an update is the mean over the tokens that have a return (`Sample.has_return`).
    """

    def __init__(
        self,
        directory: Path,
        objective: ObjectiveWithCritic,
        options: TrainerOptions,
        world: World | None,
        replica: Replica,
    ) -> None:
        """Load a directory as the value model of a rank whose policy has the same options."""
        self._clip = objective.value_clip
        self._num_tokens = 0
        """Tokens of this replica whose gradients were accumulated."""
        own = replace(
            options,
            learning_rate=objective.value_learning_rate,
            learning_rate_field="algorithm.objective.valueLearningRate",
            kl_coefficient=0.0,
        )
        super().__init__(directory, own, world, replica=replica)

    def compare(self, samples: Sequence[Sample], denominator: float) -> float:
        """Compare the gradients as those of a policy."""
        self._prepare_pass()
        learned = [sample for sample in samples if sample.has_return.any()]
        micro_batches = self._micro_batches(learned)
        return self._accumulation.difference(
            lambda: self._pass_over(micro_batches, len(learned)), self._replica.add_up, denominator
        )

    @torch.no_grad()
    def values(self, samples: Sequence[Sample]) -> Mapping[int, LogProbs]:
        """See `ValuingTrainer`."""
        self._prepare_pass()
        found: dict[int, LogProbs] = {}
        for indices in self._passes(samples):
            part = [samples[index] for index in indices]
            found |= zip(indices, by_sample(part, self._value_model.response_values(part)), strict=True)
        return found

    def accumulate(self, samples: Sequence[Sample]) -> GradientSums:
        """Add the gradients of the sum of the losses of values."""
        self._prepare_pass()
        sums, learned = GradientSums(), [sample for sample in samples if sample.has_return.any()]
        if micro_batches := self._micro_batches(learned):
            self._accumulation.open()
            sums = self._pass_over(micro_batches, len(learned))
            self._accumulation.added()
        sums = self._replica.total(sums)
        self._num_tokens += sums.critic.num_tokens
        return sums

    def update(self, denominator: float) -> UpdateReport:
        """Make a step like that of a policy, with the mean over the tokens of all replicas for a loss."""
        num_tokens = torch.tensor(float(self._num_tokens), dtype=torch.float64, device=self._device)
        self._replica.add_up(num_tokens)
        return super().update(num_tokens.item() or 1.0)

    def discard(self) -> None:
        """Drop accumulated gradients."""
        super().discard()
        self._num_tokens = 0

    @property
    def _value_model(self) -> ValueModel:
        assert isinstance(self._model, ValueModel)
        return self._model

    @property
    def _architecture(self) -> str:
        return super()._architecture.replace("ForCausalLM", "ForSequenceClassification")

    def _load_model(self, directory: Path) -> CausalLM:
        return self._replica.load_value_model(directory)

    def _pass(self, micro_batch: MicroBatch) -> GradientSums:
        samples = micro_batch.samples
        values = self._value_model.response_values(samples)

        def flat(arrays: Sequence[npt.NDArray[Any]]) -> Tensor:
            return torch.from_numpy(np.concatenate(arrays)).to(values.device, values.dtype) if arrays else values

        kept = flat([sample.has_return for sample in samples]).bool()
        old = flat([sample.values for sample in samples if sample.values is not None])[kept]
        returns = flat([sample.returns for sample in samples if sample.returns is not None])[kept]
        losses, is_clipped = value_losses(values[kept], old.detach(), returns.detach(), self._clip)
        loss = losses.sum()
        if torch.is_grad_enabled():
            torch.autograd.backward(loss)
        return GradientSums(critic=CriticSums(len(losses), loss.item(), is_clipped.sum().item()))


class TrainerWithCritic:
    """Rank of a torch trainer (see `ValuingTrainer`) of a policy and its critic, which do everything one by one."""

    def __init__(
        self,
        directory: Path,
        critic: Path,
        options: TrainerOptions,
        world: World | None = None,
        sizes: ParallelSizes | None = None,
        meter: WorkMeter | None = None,
    ) -> None:
        """Join `world`, and load a Hugging Face directory for each.

        Raises:
            OSError, ValueError: the policy is unusable.
            UserError: the critic is.
        """
        assert isinstance(options.objective, ObjectiveWithCritic), "no other objective has a critic"
        self._policy = TorchTrainer(directory, options, world, sizes, meter)
        try:
            self._critic = Critic(critic, options.objective, options, world, self._policy.replica)
        except (OSError, ValueError, KeyError) as error:
            raise UserError(
                f"{AT}: {options.objective.value_model or critic.name} cannot be loaded as "
                f"critic ({error}); choose a checkpoint of a language model with the tokenizer of the model"
            ) from error

    def accumulate(self, samples: Sequence[Sample]) -> GradientSums:
        """Add the gradients of both."""
        return self._policy.accumulate(samples) + self._critic.accumulate(samples)

    def log_probs(self, samples: Sequence[Sample]) -> Mapping[int, LogProbs]:
        """Return those of the policy."""
        return self._policy.log_probs(samples)

    def values(self, samples: Sequence[Sample]) -> Mapping[int, LogProbs]:
        """Return those of the critic."""
        return self._critic.values(samples)

    def compare(self, samples: Sequence[Sample], denominator: float) -> float:
        """Return the larger difference of both."""
        return max(self._policy.compare(samples, denominator), self._critic.compare(samples, denominator))

    def update(self, denominator: float) -> UpdateReport:
        """Make a step of each."""
        report = self._policy.update(denominator)
        return replace(report, critic=self._critic.update(denominator))

    @property
    def policy_version(self) -> int:
        """Number of optimizer steps so far."""
        return self._policy.policy_version

    def weights(self) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
        """Yield those of the policy."""
        return self._policy.weights()

    def tensors(self, *, in_pieces: bool = False) -> Iterator[tuple[str, Any, int | None]]:
        """Yield those of the policy."""
        return self._policy.tensors(in_pieces=in_pieces)

    def begin_save(self, directory: Path) -> Callable[[], None]:
        """Write both; the directory of the critic opens in transformers as a model for sequence classification."""
        each = self._policy.begin_save(directory), self._critic.begin_save(directory / _DIRECTORY)

        def write() -> None:
            for write_one in each:
                write_one()

        return write

    def load(self, directory: Path) -> None:
        """Restore both; a checkpoint of a job that had no critic yet leaves it as it begins."""
        self._policy.load(directory)
        if (directory / _DIRECTORY).exists():
            self._critic.load(directory / _DIRECTORY)

    def discard(self) -> None:
        """Drop accumulated gradients."""
        self._policy.discard()
        self._critic.discard()

    def sleep(self) -> None:
        """Move both to the host."""
        self._policy.sleep()
        self._critic.sleep()

    def wake(self) -> None:
        """Move the weights of both back."""
        self._policy.wake()
        self._critic.wake()
