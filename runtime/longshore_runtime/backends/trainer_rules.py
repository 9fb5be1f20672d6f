"""Rules common to all trainers: which samples get which passes, clipping, and where the reference is."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from longshore_runtime.backends.host_copies import HostCopies
from longshore_runtime.backends.sums import GradientSums
from longshore_runtime.backends.trainer_protocol import Sample, TrainerOptions
from longshore_runtime.errors import diverged


@dataclass(frozen=True)
class Split:
    """Samples by the passes that they need."""

    left_out: Sequence[Sample]
    """Samples that need no pass, because no token of them is in the loss."""
    silent: Sequence[Sample]
    """Samples that need only a forward pass.

    Without a KL penalty or an entropy bonus, a zero advantage has no gradient: the pass serves the metrics.
    """
    trained: Sequence[Sample]
    """Samples that need a forward and a backward pass."""

    has_reference: bool

    @property
    def num_passes(self) -> int:
        """Number of passes over samples; the reference adds one to each."""
        return (len(self.silent) + len(self.trained)) * (2 if self.has_reference else 1)

    @property
    def left_out_sums(self) -> GradientSums:
        """Return the sums of samples without a pass."""
        return GradientSums(num_tokens=sum(sample.num_response_tokens for sample in self.left_out))


def split(samples: Sequence[Sample], options: TrainerOptions) -> Split:
    """Split samples, keeping their order; each one is in one part."""
    in_loss, everything = [sample for sample in samples if sample.num_loss_tokens], options.trains_without_advantage
    return Split(
        left_out=[sample for sample in samples if not sample.num_loss_tokens],
        silent=[sample for sample in in_loss if not sample.has_advantage and not everything],
        trained=[sample for sample in in_loss if sample.has_advantage or everything],
        has_reference=options.has_reference,
    )


def clipping(options: TrainerOptions, norm: float) -> float:
    """Return the factor that scales gradients of this norm down to the allowed norm; at most 1."""
    return min(1.0, options.max_grad_norm / (norm + 1e-6))


def require_finite(norm: float, step: int, field: str = "algorithm.learningRate") -> None:
    """Raise UserError for gradients that are not finite; the weights are still those before the step."""
    if not math.isfinite(norm):
        raise diverged(field, f"the gradient norm of optimizer step {step} is {norm}")


def _is_weight(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is a weight and none of the buffers, which some models change in their passes."""
    return isinstance(tensor, torch.nn.Parameter)


class ReferencePlace:
    """Place of the reference model, if there is one: with the trainer, or on the host until it computes."""

    def __init__(self, reference: torch.nn.Module | None, device: torch.device, *, offloads: bool) -> None:
        """Place `reference` on `device`; with `offloads`, it is on the host while it does not compute."""
        self._copies = HostCopies(device, reference._apply, is_frozen=_is_weight) if reference is not None else None
        self._offloads = offloads
        self.wake()

    def wake(self) -> None:
        """Place the reference after the trainer has woken up."""
        if self._offloads:
            self.sleep()
        elif self._copies is not None:
            self._copies.come_back()

    def sleep(self) -> None:
        """Move the reference to the host."""
        if self._copies is not None:
            self._copies.leave()

    @contextmanager
    def computing(self, leave: Callable[[], object], come_back: Callable[[], object]) -> Iterator[None]:
        """Have the reference on the device within the block; an offloaded one replaces the model there meanwhile."""
        if self._copies is None or not self._offloads:
            yield
            return
        leave()
        self._copies.come_back()
        try:
            yield
        finally:
            self._copies.leave()
            come_back()
