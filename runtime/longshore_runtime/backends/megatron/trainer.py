"""Trainer of Llama, Qwen2 and Qwen3 on Megatron-core: a replica may span several ranks."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from megatron.core import parallel_state
from torch import Tensor
from transformers import AutoConfig

from longshore.policy.learning_rate import learning_rate
from longshore_runtime.backends.accumulation import Accumulation
from longshore_runtime.backends.attention_kernels import allow_new_shapes
from longshore_runtime.backends.devices import META, compute_device
from longshore_runtime.backends.hf_mapping.architecture import Architecture, read_architecture
from longshore_runtime.backends.hf_mapping.entries import ParameterEntry, stage_entries
from longshore_runtime.backends.hf_mapping.files import TensorFiles, write_configuration, write_weights
from longshore_runtime.backends.host_copies import HostCopies
from longshore_runtime.backends.losses import NO_REFERENCE, ReferenceTokens, by_sample, sample_losses
from longshore_runtime.backends.megatron.batch import MicroBatch, micro_batch
from longshore_runtime.backends.megatron.cpu import on_device
from longshore_runtime.backends.megatron.memory import GradientMemory, WeightMemory
from longshore_runtime.backends.megatron.model import ShardedModel, data_parallel
from longshore_runtime.backends.megatron.moment_files import MomentFiles, Writer, write_moment
from longshore_runtime.backends.megatron.optimizer import MOMENTS, DistributedAdamW
from longshore_runtime.backends.megatron.pipeline import from_last_stage, run
from longshore_runtime.backends.megatron.weights import (
    gather,
    gather_everywhere,
    gather_to_first,
    own_entries,
    shards,
    stage_place,
)
from longshore_runtime.backends.megatron.world import group_that_writes, join
from longshore_runtime.backends.micro_batches import pack_rows
from longshore_runtime.backends.parallel_sizes import ParallelSizes
from longshore_runtime.backends.precision import compute_dtype
from longshore_runtime.backends.pretrained import TWO_HEADS
from longshore_runtime.backends.recompute import chosen_recompute
from longshore_runtime.backends.sums import GradientSums
from longshore_runtime.backends.trainer_protocol import Sample, TrainerOptions, UpdateReport
from longshore_runtime.backends.trainer_rules import ReferencePlace, clipping, require_finite, split
from longshore_runtime.backends.work_meter import WorkMeter
from longshore_runtime.backends.world import World
from longshore_runtime.trajectories.trajectory import LogProbs

_OPTIMIZER_DIRECTORY = "optimizer"
_STATE_FILE = "trainer.pt"


class MegatronTrainer:
    """Rank of a Megatron trainer (see `Trainer`): fp32 weights, gradients and AdamW; layers in fp32 or bf16 (autocast).

    All ranks of a replica call each method together, `accumulate` and `compare` with the same samples; all ranks of the
    world call `compare`, `update`, `save` and `load` together. Checkpoints do not depend on the parallel sizes.
    """

    def __init__(
        self,
        directory: Path,
        options: TrainerOptions,
        world: World | None = None,
        sizes: ParallelSizes | None = None,
        dtype: torch.dtype = torch.float32,
        meter: WorkMeter | None = None,
        reference: Path | None = None,
    ) -> None:
        """Join `world` and load this rank's part of a Hugging Face directory.

        `dtype` is for checks in double precision. `reference`: directory of the frozen model, if the options ask for
        one; None: the same directory.

        Raises:
            OSError, ValueError: the model is unusable, or does not split into `sizes`.
        """
        self._directory = directory
        self._options = options
        self._meter = meter or WorkMeter()
        self._world = world or World()
        self._sizes = sizes or ParallelSizes()
        self._device = compute_device()
        self._computes_in = compute_dtype(options, self._device) if dtype is torch.float32 else dtype
        torch.manual_seed(options.seed)
        allow_new_shapes()
        config = AutoConfig.from_pretrained(directory, local_files_only=True)
        architecture = read_architecture(config)
        self._sizes.check_model(architecture)
        if architecture.tied and TensorFiles(directory).holds_two_heads():
            raise ValueError(TWO_HEADS)
        join(self._world, self._sizes, self._device)
        with on_device(self._device):
            self._model = self._load_model(directory, config, dtype)
            self._reference = self._load_reference(reference or directory, dtype) if options.has_reference else None
            self._data_parallel = data_parallel(self._model)
            self._optimizer = DistributedAdamW(self._data_parallel, options)
        # The files may be gone when a checkpoint is written.
        self._shapes = [
            dict(_shapes(architecture, stage, self._sizes.pipeline, directory)) for stage in range(self._sizes.pipeline)
        ]
        self._writing = group_that_writes(self._sizes)
        self._writes_weights = (
            self._world.rank < self._sizes.ranks_per_replica and parallel_state.get_context_parallel_rank() == 0
        )
        self._writer = Writer(self._world.rank, parallel_state.get_tensor_model_parallel_rank(), self._sizes.tensor)
        self._accumulation = Accumulation(
            GradientMemory(self._data_parallel), self._device, offloads=options.offload_gradients
        )
        self._weights = WeightMemory(self._data_parallel, self._device)
        self._moments = HostCopies(self._device, self._optimizer.apply_to_moments)
        self._reference_place = ReferencePlace(self._reference, self._device, offloads=options.offload_reference)
        self._policy_version = 0

    def accumulate(self, samples: Sequence[Sample]) -> GradientSums:
        """Add the gradients of the sum of token losses; every rank of the replica returns the replica's sums."""
        self._prepare_pass()
        parts = split(samples, self._options)
        self._meter.expect(parts.num_passes)
        sums = parts.left_out_sums
        with self._computing():
            sums += self._pass_over(parts.silent, backward=False)
            if parts.trained:
                self._accumulation.open()
                sums += self._pass_over(parts.trained, backward=True)
                self._accumulation.added()
        return from_last_stage(sums)

    def log_probs(self, samples: Sequence[Sample]) -> Mapping[int, LogProbs]:
        """Compute log-probabilities on the ranks of the last stage; see `Trainer`."""
        self._prepare_pass()
        lengths = [sample.num_tokens for sample in samples]
        order = pack_rows(lengths, self._options.max_tokens_per_micro_batch)
        batches = self._micro_batches(samples)
        self._meter.expect(len(samples))
        with self._computing():
            of_batches = self._log_probs(self._data_parallel, self._model, batches)
        return {
            index: values
            for indices, batch, flat in zip(order, batches, of_batches, strict=False)  # Other stages have none.
            for index, values in zip(indices, by_sample(batch.samples, flat), strict=True)
        }

    def compare(self, samples: Sequence[Sample], denominator: float) -> float:
        """Compare the gradients of all replicas with those of one pass over all samples; see `Trainer`."""
        self._prepare_pass()
        in_loss = [sample for sample in samples if sample.num_loss_tokens]
        with self._computing():
            return self._accumulation.difference(
                lambda: self._pass_over(in_loss, backward=True), self._optimizer.add_up, denominator
            )

    def update(self, denominator: float) -> UpdateReport:
        """Sum over all ranks, divide by `denominator`, clip to the global norm, and make one AdamW step."""
        assert denominator > 0, "an update needs the denominator of the whole step"
        self.wake()
        self._accumulation.collect()
        self._moments.come_back()
        version = self._policy_version + 1
        with on_device(self._device):
            norm = self._optimizer.reduce(denominator)
            require_finite(norm, version, self._options.learning_rate_field)
            rate = learning_rate(self._options.schedule, version)
            self._optimizer.step(rate, scale=clipping(self._options, norm))
        self.discard()
        self._policy_version = version
        return UpdateReport(norm, rate, version)

    @property
    def policy_version(self) -> int:
        """Number of optimizer steps so far."""
        return self._policy_version

    def weights(self) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
        """Yield weights by Hugging Face name (tied ones once), gathered one by one on the replica's first rank."""
        for name, tensor in self.named_weights():
            yield name, tensor.float().numpy()

    def tensors(self, *, in_pieces: bool = False) -> Iterator[tuple[str, Tensor, int | None]]:
        """Yield weights on the device, one by one on every rank of the replica; see `Trainer`."""
        architecture, shard = self._model.architecture, self._shard_of_weight
        return gather_everywhere(architecture, shard, self._device, in_pieces=in_pieces)

    def begin_save(self, directory: Path) -> Callable[[], None]:
        """Return what writes weights (Hugging Face format), moments, policy version and random state.

        Each rank writes the moments that it owns, and the first rank of each stage of the first replica the weights of
        the stage. These are copies on the host, which a trainer that sleeps has anyway.
        """
        self._moments.leave()
        names = {parameter: name for name, parameter in self._model.named_parameters()}
        entries = {entry.megatron: entry for entry in own_entries(self._model.architecture) if not entry.duplicate}
        moments = {
            moment: [
                (entry, first, values)
                for parameter, first, values in self._optimizer.owned_moments(moment)
                if (entry := entries.get(names[parameter])) is not None
            ]
            for moment in MOMENTS
        }
        weights = [
            (entry, self._weights.on_host(self._model.get_parameter(name)))
            for name, entry in (entries.items() if self._writes_weights else ())
        ]
        state = {"policy_version": self._policy_version, "random": torch.get_rng_state()}
        stage, is_first = stage_place()[0], self._world.rank == 0

        def write() -> None:
            each = gather_to_first(weights, self._writing)
            try:
                if is_first:
                    write_configuration(self._directory, directory)
                    torch.save(state, directory / _STATE_FILE)
                for moment, parts in moments.items():
                    write_moment(directory / _OPTIMIZER_DIRECTORY / moment, parts, self._writer)
                if self._writes_weights and self._writer.tensor_rank == 0:
                    write_weights(directory, self._shapes, stage, each)
            finally:
                deque(each, maxlen=0)  # The ranks gather all weights together, also if the first one fails.

        return write

    def load(self, directory: Path) -> None:
        """Restore what `begin_save` wrote, bit by bit, whatever the sizes were; accumulated gradients are dropped."""
        self.wake()
        architecture, parameters = self._model.architecture, dict(self._model.named_parameters())
        state = torch.load(directory / _STATE_FILE, map_location="cpu", weights_only=True)
        moments = MOMENTS if state["policy_version"] > 0 else ()
        total_values = (1 + len(moments)) * sum(parameter.numel() for parameter in parameters.values())

        def metered(read: Callable[[ParameterEntry], list[Tensor]]) -> Iterator[tuple[str, Tensor]]:
            for name, shard in shards(architecture, read):
                yield name, shard
                self._meter.loaded(shard.numel(), total_values)

        files = TensorFiles(directory)
        self._copy_weights(self._model, metered(files.read_all))
        self._optimizer.begin_at(state["policy_version"])
        for moment in moments:
            stored = MomentFiles(directory / _OPTIMIZER_DIRECTORY / moment)
            for name, shard in metered(partial(stored.read, files)):
                self._optimizer.restore(moment, parameters[name], shard)
        self._moments.leave()
        self._policy_version = state["policy_version"]
        torch.set_rng_state(state["random"])
        self.discard()

    def discard(self) -> None:
        """Drop accumulated gradients."""
        self._accumulation.drop()

    def sleep(self) -> None:
        """Move everything to the host."""
        self._accumulation.keep()
        self._weights.offload()
        self._moments.leave()
        self._reference_place.sleep()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def wake(self) -> None:
        """Move the weights back; gradients and optimizer state follow when they are needed."""
        self._weights.reload()
        self._reference_place.wake()

    def _prepare_pass(self) -> None:
        self.wake()
        if self._options.offload_moments:
            self._moments.leave()

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield weights in the precision of the trainer; a sleeping rank needs memory for one at a time."""
        return self._gathered(self._shard_of_weight)

    def _pass_over(self, samples: Sequence[Sample], *, backward: bool) -> GradientSums:
        batches = self._micro_batches(samples)
        reference = self._reference_tokens(batches)

        def finish(number: int, hidden: Tensor) -> tuple[Tensor, GradientSums]:
            batch, known = batches[number], reference[number] if reference else NO_REFERENCE
            log_probs, entropies = self._model.response_tokens(hidden, batch, self._options.temperature, known)
            own, top = known.split(log_probs)
            return sample_losses(batch.samples, own, entropies, known.log_probs, self._options, top)

        results = run(self._data_parallel, batches, finish, backward=backward, meter=self._meter)
        return sum(results, GradientSums())

    def _reference_tokens(self, batches: Sequence[MicroBatch]) -> list[ReferenceTokens]:
        if (model := self._reference) is None:
            return []
        temperature, num_ids = self._options.temperature, self._model.architecture.vocab_size
        num_top_tokens = self._options.objective.num_top_tokens

        def finish(number: int, hidden: Tensor) -> tuple[Tensor, ReferenceTokens]:
            found = model.most_likely_tokens(hidden, batches[number], temperature, num_top_tokens, num_ids)
            return hidden.sum(), found

        with self._reference_place.computing(self._weights.offload, self._weights.reload):
            if num_top_tokens:
                return run(model, batches, finish, backward=False, meter=self._meter)
            return [ReferenceTokens(log_probs) for log_probs in self._log_probs(model, model, batches)]

    def _log_probs(self, stages: torch.nn.Module, model: ShardedModel, batches: Sequence[MicroBatch]) -> list[Tensor]:
        """Compute log-probabilities of all response tokens of each micro-batch; `stages` is what the pipeline runs."""

        def finish(number: int, hidden: Tensor) -> tuple[Tensor, Tensor]:
            log_probs, _ = model.response_tokens(hidden, batches[number], self._options.temperature)
            return log_probs.sum(), log_probs

        return run(stages, batches, finish, backward=False, meter=self._meter)

    def _micro_batches(self, samples: Sequence[Sample]) -> list[MicroBatch]:
        lengths = [sample.num_tokens for sample in samples]
        group = parallel_state.get_context_parallel_group()
        return [
            micro_batch([samples[index] for index in indices], group.size(), group.rank(), self._device)
            for indices in pack_rows(lengths, self._options.max_tokens_per_micro_batch)
        ]

    def _load_model(self, directory: Path, config: Any, dtype: torch.dtype) -> ShardedModel:
        recompute = chosen_recompute(self._options, self._device)
        model = ShardedModel(config, self._sizes, self._device, dtype, self._computes_in, recompute)
        self._copy_weights(model, shards(model.architecture, TensorFiles(directory).read_all))
        return model

    def _load_reference(self, directory: Path, dtype: torch.dtype) -> ShardedModel:
        config = AutoConfig.from_pretrained(directory, local_files_only=True)
        self._sizes.check_model(read_architecture(config))
        return self._load_model(directory, config, dtype)

    @torch.no_grad()
    def _copy_weights(self, model: ShardedModel, weights: Iterable[tuple[str, Tensor]]) -> None:
        parameters = dict(model.named_parameters())
        for name, shard in weights:
            parameters.pop(name).copy_(shard)
        assert not parameters, f"without a mapping: {sorted(parameters)}"

    def _shard_of_weight(self, name: str) -> Tensor:
        return self._weights.shard(self._model.get_parameter(name))

    def _gathered(self, shard: Callable[[str], Tensor]) -> Iterator[tuple[str, Tensor]]:
        return gather(self._model.architecture, shard, self._device)

    def _computing(self) -> AbstractContextManager[object]:
        stack = ExitStack()
        stack.enter_context(on_device(self._device))
        is_narrow = self._computes_in is torch.bfloat16
        stack.enter_context(torch.autocast(self._device.type, torch.bfloat16, enabled=is_narrow))
        return stack


def _shapes(architecture: Architecture, stage: int, num_stages: int, directory: Path) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors that the files of a stage have, without values."""
    files = TensorFiles(directory)
    for entry in stage_entries(architecture, stage, num_stages):
        for name in () if entry.duplicate else entry.hf:
            yield name, torch.empty(files.shape(name), device=META)
