"""Data-parallel trainer of any Hugging Face causal language model, in PyTorch."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from longshore.checks.model_files import TOKENIZER_FILES
from longshore.policy.learning_rate import learning_rate
from longshore_runtime.backends.accumulation import Accumulation
from longshore_runtime.backends.attention_kernels import allow_new_shapes
from longshore_runtime.backends.causal_lm import CausalLM
from longshore_runtime.backends.compiled_layers import compile_layers
from longshore_runtime.backends.devices import HOST, compute_device
from longshore_runtime.backends.flash_attention import use_newest_flash_attention
from longshore_runtime.backends.hf_mapping.files import TensorFiles, copy_files, write_weights
from longshore_runtime.backends.host_copies import HostCopies, Move
from longshore_runtime.backends.lora import is_frozen
from longshore_runtime.backends.losses import NO_REFERENCE, ReferenceTokens, by_sample, sample_losses
from longshore_runtime.backends.parallel_sizes import ParallelSizes
from longshore_runtime.backends.precision import compute_dtype
from longshore_runtime.backends.recompute import chosen_recompute, set_recompute
from longshore_runtime.backends.sums import GradientSums
from longshore_runtime.backends.torch_moments import MOMENTS, load_moments, save_moments
from longshore_runtime.backends.torch_replica import Replica
from longshore_runtime.backends.torch_sharding import join_replica
from longshore_runtime.backends.trainer_protocol import Sample, TrainerOptions, UpdateReport
from longshore_runtime.backends.trainer_rules import ReferencePlace, clipping, require_finite, split
from longshore_runtime.backends.work_meter import WorkMeter
from longshore_runtime.backends.world import World
from longshore_runtime.trajectories.trajectory import LogProbs

__all__ = ["TorchTrainer", "World"]

_STATE_FILE = "trainer.pt"
_GENERATION = "generation_config.json"
_OPTIMIZER_DIRECTORY = "optimizer"


@dataclass
class _Gradients:
    """All gradients of a rank as one vector, so that one collective sums them. Each parameter's `grad` is a view."""

    parameters: list[torch.nn.Parameter]
    replica: Replica

    def place(self) -> None:
        """See `GradientBuffers`."""
        own = [self.replica.own(parameter) for parameter in self.parameters]
        self.flat = own[0].new_zeros(sum(values.numel() for values in own))
        self.gradients = list(torch.split(self.flat, [values.numel() for values in own]))
        for parameter, gradient in zip(self.parameters, self.gradients, strict=True):
            parameter.grad = self.replica.spread(gradient, parameter)

    def release(self) -> None:
        """See `GradientBuffers`."""
        for parameter in self.parameters:
            parameter.grad = None
        self.flat, self.gradients = torch.zeros(0), list[Tensor]()

    @property
    def tensors(self) -> list[Tensor]:
        """Return the vector."""
        return [self.flat]


@dataclass(frozen=True)
class MicroBatch:
    """Samples of one pass."""

    samples: Sequence[Sample]
    reference: ReferenceTokens = NO_REFERENCE
    """What the reference says of all their response tokens, if there is one."""


class TorchTrainer:
    """Rank of a torch trainer (see `Trainer`): fp32 weights, gradients and AdamW; layers compute in fp32 or bf16.

    A replica is one rank, or several that have a shard of all of it each. Checkpoints do not depend on that.
    """

    def __init__(
        self,
        directory: Path,
        options: TrainerOptions,
        world: World | None = None,
        sizes: ParallelSizes | None = None,
        meter: WorkMeter | None = None,
        reference: Path | None = None,
        replica: Replica | None = None,
    ) -> None:
        """Join `world`, unless as part of a `replica` that has, and load a Hugging Face directory.

        `reference`: directory of the frozen model, if the options ask for one; None: the same directory.

        Raises:
            OSError, ValueError: the model is unusable, or the sizes do not fit the world.
        """
        self._directory = directory
        self._options = options
        self._world = world or World()
        self._meter = meter or WorkMeter()
        self._device = compute_device()
        torch.manual_seed(options.seed)
        allow_new_shapes()
        dtype = compute_dtype(options, self._device)
        self._replica = replica or join_replica(self._world, sizes or ParallelSizes(), self._device, dtype)
        self._model = self._load_model(directory)
        # A critic and a teacher may be of another kind.
        if replica is None and (mistake := self._model.spread_mistake) is not None:
            raise ValueError(mistake)
        use_newest_flash_attention(self._device, self._model.module.config)
        if (adapter := self._model.adapter) is not None:
            adapter.initialise(options.seed, self._replica.own, self._replica.rows)
        # Without its adapter, the model is the reference, unless that is a teacher.
        is_own_reference = adapter is not None and reference is None
        self._reference = (
            self._frozen(reference or directory) if options.has_reference and not is_own_reference else None
        )
        self._has_reference = options.has_reference
        self._reference_place = ReferencePlace(self._reference, self._device, offloads=options.offload_reference)
        set_recompute(self._model.module, chosen_recompute(options, self._device), is_compiled=options.torch_compile)
        if options.torch_compile:
            compile_layers(self._model.module)
        self._parameters = [p for p in self._model.module.parameters() if p.requires_grad]
        self._gradients = _Gradients(self._parameters, self._replica)
        self._accumulation = Accumulation(self._gradients, self._device, offloads=options.offload_gradients)
        self._optimizer = torch.optim.AdamW(
            self._parameters,
            lr=options.learning_rate,
            **_adam_settings(options),
            fused=True,  # Torch's own choice on GPUs needs as much memory again as the weights.
        )
        self._weights = HostCopies(self._device, self._model._apply, is_frozen=is_frozen)
        self._moments = HostCopies(self._device, self._apply_to_moments)
        self._policy_version = 0
        self._awake = True

    def accumulate(self, samples: Sequence[Sample]) -> GradientSums:
        """Add the gradients of the sum of token losses; samples are packed by length into micro-batches."""
        self._prepare_pass()
        parts = split(samples, self._options)
        self._meter.expect(parts.num_passes)
        with torch.no_grad():
            sums = parts.left_out_sums + self._pass_over(self._micro_batches(parts.silent), len(parts.silent))
        # Some may be empty: another rank of the replica has samples that are trained.
        if micro_batches := self._micro_batches(parts.trained):
            self._accumulation.open()
            sums += self._pass_over(micro_batches, len(parts.trained))
            self._accumulation.added()
        return self._replica.total(sums)

    @torch.no_grad()
    def log_probs(self, samples: Sequence[Sample]) -> Mapping[int, LogProbs]:
        """Compute log-probabilities in the same passes as gradients; see `Trainer`."""
        self._prepare_pass()
        found: dict[int, LogProbs] = {}
        own = self._passes(samples)
        self._meter.expect(len(samples))
        for indices in self._meter.each(own, len(samples)):
            part = [samples[index] for index in indices]
            values = self._model.response_tokens(part, self._options.temperature).log_probs
            found |= zip(indices, by_sample(part, values), strict=True)
        return found

    def compare(self, samples: Sequence[Sample], denominator: float) -> float:
        """Compare the gradients of all replicas with those of one pass over all samples; see `Trainer`."""
        self._prepare_pass()
        in_loss = [sample for sample in samples if sample.num_loss_tokens]
        micro_batches = self._micro_batches(in_loss)
        return self._accumulation.difference(
            lambda: self._pass_over(micro_batches, len(in_loss)), self._replica.add_up, denominator
        )

    def update(self, denominator: float) -> UpdateReport:
        """Sum over all replicas, divide by `denominator`, clip to the global norm, and make one AdamW step."""
        assert denominator > 0, "an update needs the denominator of the whole step"
        self.wake()
        self._accumulation.collect()
        version, gradients = self._policy_version + 1, self._gradients.flat
        self._replica.add_up(gradients)
        gradients /= denominator
        norm = self._replica.norm(gradients)
        require_finite(norm, version, self._options.learning_rate_field)
        gradients *= clipping(self._options, norm)
        rate = learning_rate(self._options.schedule, version)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._moments.come_back()
        self._optimizer.step()
        self.discard()
        self._policy_version = version
        return UpdateReport(norm, rate, version)

    @property
    def replica(self) -> Replica:
        """Return the replica that this rank belongs to."""
        return self._replica

    @property
    def policy_version(self) -> int:
        """Number of optimizer steps so far."""
        return self._policy_version

    def weights(self) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
        """Yield current weights by Hugging Face name (tied ones once), copied to the host one by one."""
        for name, tensor, _ in self.tensors():
            if self._replica.is_first_rank:
                yield name, tensor.to("cpu", copy=True).numpy().astype(np.float32, copy=False)

    def tensors(self, *, in_pieces: bool = False) -> Iterator[tuple[str, Tensor, int | None]]:
        """Yield current weights on the device; sharded ones are gathered one by one, on every rank of the replica."""
        assert not in_pieces, "nothing is cut by tensor parallelism"
        stored = self._model.stored
        for name, parameter in stored.parameters():
            for part, values in stored.apart(name, self._replica.whole(parameter)):
                yield part, values, None
        for name, values in stored.buffers():
            yield name, values, None

    def begin_save(self, directory: Path) -> Callable[[], None]:
        """Return what writes weights and tokenizer (Hugging Face format), optimizer, policy version and random state.

        On the CPU these are the tensors themselves. With a GPU they are copies on the host, which a trainer that sleeps
        has anyway, so that engines may have the memory meanwhile.
        """
        if self._replica.number > 0:
            return lambda: None
        self._moments.leave()
        stored, replica = self._model.stored, self._replica
        parameters = [(name, replica.own(one).to(HOST), one.shape[:1].numel()) for name, one in stored.parameters()]
        buffers = [(name, values.to(HOST)) for name, values in stored.buffers()]
        moments = dict(self._named_moments())
        state = {"policy_version": self._policy_version, "random": torch.get_rng_state()}
        # Now, because FSDP exchanges parameters while it computes.
        shapes = self._model.file_names.empty()

        def weights() -> Iterator[tuple[str, Tensor]]:
            for name, own, num_rows in parameters:
                yield from stored.apart(name, replica.whole_on_host(own, num_rows))
            yield from buffers

        def write() -> None:
            if moments:
                save_moments(directory / _OPTIMIZER_DIRECTORY, moments, replica.writing_group)
            each = weights()
            try:
                if replica.is_first_rank:
                    self._write_model(directory, shapes, ((name, one.to(torch.float32)) for name, one in each))
                    torch.save(state, directory / _STATE_FILE)
            finally:
                deque(each, maxlen=0)  # The ranks gather all weights together, also if the first one fails.

        return write

    def _write_model(
        self, directory: Path, shapes: Mapping[str, Tensor], weights: Iterator[tuple[str, Tensor]]
    ) -> None:
        """Write a Hugging Face directory, or one of PEFT, with weights that come in the order of `shapes`."""
        if self._model.adapter is not None:
            self._model.adapter.write(directory, dict(weights))
            return
        directory.mkdir(parents=True, exist_ok=True)
        module = self._model.module
        module.config.architectures = [self._architecture]
        module.config.save_pretrained(directory)
        if not (self._directory / _GENERATION).exists() and module.can_generate():
            module.generation_config.save_pretrained(directory)
        # transformers does not write what it only warned of when it read it, so the file is copied.
        copy_files(self._directory, directory, (_GENERATION, *TOKENIZER_FILES))
        write_weights(directory, [shapes], 0, weights)

    def load(self, directory: Path) -> None:
        """Restore what `begin_save` wrote, bit by bit; accumulated gradients are dropped."""
        state = torch.load(directory / _STATE_FILE, map_location="cpu", weights_only=True)
        self._policy_version = state["policy_version"]
        self._optimizer.state.clear()
        if self._policy_version > 0:
            for parameter in self._parameters:
                self._optimizer.state[parameter] = {
                    # Fused steps need it on the device, which a sleeping trainer's parameters have left.
                    "step": torch.tensor(float(self._policy_version), device=self._device),
                    **{moment: torch.zeros_like(parameter, requires_grad=False) for moment in MOMENTS},
                }
        moments = dict(self._named_moments())
        stored = self._model.stored
        held = [*(parameter for _, parameter in stored.parameters()), *moments.values()]
        total_values = sum(self._replica.own(tensor).numel() for tensor in held)
        files = TensorFiles(directory)
        for name, parameter in stored.parameters():
            own = self._replica.own(parameter)
            own.copy_(stored.together(name, files, self._replica.rows(parameter)))
            self._meter.loaded(own.numel(), total_values)
        if moments:
            read = partial(self._meter.loaded, total_values=total_values)
            load_moments(directory / _OPTIMIZER_DIRECTORY, moments, self._replica.group, read)
        self._moments.leave()
        torch.set_rng_state(state["random"])
        self.discard()

    def discard(self) -> None:
        """Drop accumulated gradients."""
        self._accumulation.drop()

    def sleep(self) -> None:
        """Move everything to the host."""
        self._leave_device()
        self._reference_place.sleep()
        self._moments.leave()
        self._awake = False
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def wake(self) -> None:
        """Move the weights back; gradients and optimizer state follow when they are needed."""
        if not self._awake:
            self._return_to_device()
            self._reference_place.wake()
            self._awake = True

    def _micro_batches(self, samples: Sequence[Sample]) -> list[MicroBatch]:
        """Return this rank's micro-batches, with what the reference says of them if there is one.

        Some are empty if other ranks of the replica have more; there are none if none of them has any.
        """
        parts = [[samples[index] for index in indices] for indices in self._passes(samples)]
        if not self._has_reference or not parts:
            return [MicroBatch(part) for part in parts]
        model = self._reference or self._model
        asked = self._options.temperature, self._options.objective.num_top_tokens, self._model.vocab_size
        adapter_off = nullcontext() if model.adapter is None else model.adapter.off()
        place = self._reference_place.computing(self._leave_device, self._return_to_device)
        with place, adapter_off, torch.no_grad():
            each = self._meter.each(parts, len(samples))
            return [MicroBatch(part, model.reference_tokens(part, *asked)) for part in each]

    def _passes(self, samples: Sequence[Sample]) -> list[list[int]]:
        """Return the indices of the samples of each pass that this rank makes."""
        lengths = [sample.num_tokens for sample in samples]
        return self._replica.passes(self._model.micro_batches(lengths, self._options.max_tokens_per_micro_batch))

    def _pass_over(self, micro_batches: Sequence[MicroBatch], num_samples: int) -> GradientSums:
        """Run forward, and backward if gradients are enabled; `num_samples` counts those of this rank."""
        each = self._meter.each(micro_batches, num_samples)
        return sum((self._pass(micro_batch) for micro_batch in each), GradientSums())

    def _pass(self, micro_batch: MicroBatch) -> GradientSums:
        samples, reference = micro_batch.samples, micro_batch.reference
        tokens = self._model.response_tokens(
            samples,
            self._options.temperature,
            differentiates_entropies=self._options.entropy_coefficient > 0,
            reference=reference,
        )
        loss, sums = sample_losses(
            samples, tokens.log_probs, tokens.entropies, reference.log_probs, self._options, tokens.top
        )
        if torch.is_grad_enabled():
            torch.autograd.backward(loss)
        return sums

    def _leave_device(self) -> None:
        self._accumulation.keep()  # A model that moves takes its gradients along.
        self._weights.leave()

    def _return_to_device(self) -> None:
        self._weights.come_back()

    @property
    def _architecture(self) -> str:
        """Name of the class of transformers that opens a checkpoint."""
        return type(self._model.module).__name__

    def _load_model(self, directory: Path) -> CausalLM:
        options = self._options
        return self._replica.load(directory, options.lora, replays_experts=options.router_replay)

    def _frozen(self, directory: Path) -> CausalLM:
        reference = self._replica.load(directory)
        reference.requires_grad_(False)
        return reference

    def _named_moments(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the moments of AdamW, each a tensor that is distributed like its parameter."""
        for name, parameter in self._model.module.named_parameters():
            for moment, value in self._optimizer.state[parameter].items() if parameter in self._optimizer.state else ():
                if moment in MOMENTS:
                    yield f"{moment}.{name}", value

    def _prepare_pass(self) -> None:
        self.wake()
        if self._options.offload_moments:
            self._moments.leave()

    def _apply_to_moments(self, move: Move) -> None:
        for state in self._optimizer.state.values():
            for name, value in state.items():
                if isinstance(value, Tensor) and value.dim() > 0:
                    state[name] = move(value)


def _adam_settings(options: TrainerOptions) -> dict[str, Any]:
    """Return the settings that a step of AdamW depends on besides moments and learning rate."""
    betas = options.adam_beta1, options.adam_beta2
    return {"betas": betas, "eps": options.adam_epsilon, "weight_decay": options.weight_decay}
