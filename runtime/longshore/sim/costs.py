"""What things cost: roofline models of engine and trainer, each replaced by the profile where that has a figure.

Decoding reads all weights and the whole KV cache once per token (memory-bound), or is bound by the arithmetic of a
large batch; prefill and training are bound by arithmetic. Constants are shares of the data-sheet figures that
published serving and training stacks reach.
"""

from dataclasses import dataclass, field
from typing import Final

from longshore.sim.hardware import GpuModel, ModelShape
from longshore.sim.profile import Profile

_MEMORY_EFFICIENCY: Final = 0.75
"""Share of the memory bandwidth that decode kernels reach."""
_DECODE_EFFICIENCY: Final = 0.45
"""Share of peak arithmetic in the matrix products of large decode batches."""
_PREFILL_EFFICIENCY: Final = 0.5
_TRAIN_EFFICIENCY: Final = 0.35
"""Model FLOPs utilisation of post-training with packed, unequal lengths."""
_STEP_OVERHEAD_S: Final = 0.002
"""Scheduling and launching between two decode steps, whatever the batch."""
_REQUEST_OVERHEAD_S: Final = 2e-5
"""Sampling, detokenisation and bookkeeping of one request in one step, on the CPU of the engine."""
_ALL_REDUCES_PER_LAYER: Final = 2
_ALL_REDUCE_LATENCY_S: Final = 12e-6
"""Seconds of one small all-reduce inside a pod."""
_LINEAR_LAYERS: Final = 7
"""Linear layers of a layer: queries, keys, values, output, and three of the MLP."""
_ACTIVATION_BYTES: Final = 2
_ENGINE_RESERVE_BYTES: Final = 4e9
"""Activations, CUDA graphs and communication buffers of an engine, per GPU."""
_HOST_LINK_BYTES_PER_S: Final = 25e9
"""Between host and GPU memory: PCIe 4 x16, or PCIe 5 as measured."""
_NETWORK_BYTES_PER_S: Final = 50e9
"""Between pods, per GPU: 400 Gbit/s."""
_OPTIMIZER_BYTES: Final = 30
"""Per parameter, read and written by AdamW: fp32 gradient, weight and two moments, and the 16-bit copy."""
_GRADIENT_BYTES: Final = 4
_TRAINER_STATE_BYTES: Final = 18
"""Per parameter, offloaded while the trainer sleeps: 16-bit and fp32 weight, fp32 gradient, two moments."""
_SWITCH_S: Final = 1.0
"""Barrier, freeing and allocating when GPUs change between rollout and training."""
_PUBLISH_S: Final = 1.0
"""Handshakes, and resetting prefix caches, of one weight publication."""
_REGROUP_S: Final = 10.0
"""Processes and communicators of rebuilt engines; their weights come on top."""


@dataclass(frozen=True)
class StepCost:
    """One decode step of a fixed batch: base + per context token, so that many steps have a closed sum."""

    base_s: float
    per_context_token_s: float

    def step_s(self, context_tokens: float) -> float:
        """Return the seconds of a step that reads so many tokens of KV cache."""
        return self.base_s + self.per_context_token_s * context_tokens


@dataclass(frozen=True)
class Costs:
    """Costs of one model on one kind of GPU."""

    gpu: GpuModel
    model: ModelShape
    profile: Profile = field(default_factory=Profile)
    lora_rank: int | None = None
    """Rank of the adapter that is trained; None: all weights are."""

    @property
    def num_trained(self) -> float:
        """Parameters that are trained; each linear layer has the hidden size on one side."""
        if self.lora_rank is None:
            return self.model.num_parameters
        hidden, of_layers = self.model.hidden_size, self.model.num_layers * _LINEAR_LAYERS * self.model.hidden_size
        return self.lora_rank * (self.model.num_parameters / hidden + of_layers)

    def num_forwards(self, num_extra_forwards: int) -> int:
        """Return the cost of a training pass in forward passes: a backward pass costs two, and one with an adapter one.

        Frozen weights need no gradient.
        """
        return (3 if self.lora_rank is None else 2) + num_extra_forwards

    def decode_step(self, num_running: int, tp_size: int) -> StepCost:
        """Return what a decode step costs.

        Weights are read, or the batch is computed; then attention reads the KV cache.
        """
        bandwidth = tp_size * self.gpu.bandwidth_bytes_per_s * _MEMORY_EFFICIENCY
        per_token_s = self.model.kv_bytes_per_token / bandwidth
        measured = self.profile.decode_step(num_running, tp_size)
        if measured is not None:
            base_s, slope_s = measured
            return StepCost(base_s, per_token_s if slope_s is None else slope_s)
        weights_s = self.model.weight_bytes / bandwidth
        arithmetic = tp_size * self.gpu.flops_per_s * _DECODE_EFFICIENCY
        compute_s = 2 * self.model.num_parameters * num_running / arithmetic
        base_s = self._overhead_s(num_running) + max(weights_s, compute_s) + self._all_reduces_s(num_running, tp_size)
        return StepCost(base_s, per_token_s)

    def prefill_s(self, num_tokens: int, tp_size: int) -> float:
        """Return the seconds to compute the KV cache of so many tokens, without attention (small below 32k tokens)."""
        if not num_tokens:
            return 0.0
        measured = self.profile.prefill_of_engine(tp_size)
        if measured is not None:
            return num_tokens / measured
        arithmetic = tp_size * self.gpu.flops_per_s * _PREFILL_EFFICIENCY
        return 2 * self.model.num_parameters * num_tokens / arithmetic

    def kv_capacity_tokens(self, tp_size: int, memory_share: float) -> int:
        """Return the tokens that the KV cache of an engine holds; raises ValueError if not even the weights fit."""
        if tp_size in self.profile.kv_capacity_tokens:
            return self.profile.kv_capacity_tokens[tp_size]
        free = self.gpu.memory_bytes * memory_share - _ENGINE_RESERVE_BYTES - self.model.weight_bytes / tp_size
        if free <= 0:
            raise ValueError(
                f"rollout.engine.gpuMemoryUtilization: {memory_share:g} of a {self.gpu.name} leaves no KV cache beside "
                f"{self.model.name} on {tp_size} GPUs; raise it or rollout.engine.tensorParallelSize"
            )
        return int(tp_size * free / self.model.kv_bytes_per_token)

    def train_s(self, num_tokens: int, gpus_per_replica: int, num_extra_forwards: int) -> float:
        """Return the seconds of forward and backward of one sample on one replica, and of extra forwards.

        A measured rate is that of the job's own trainer, its extra forwards included.
        """
        if self.profile.train_tokens_per_s is not None:
            return num_tokens / (gpus_per_replica * self.profile.train_tokens_per_s)
        forward = 2 * self.model.num_parameters * num_tokens
        attention = 2 * self.model.num_layers * self.model.hidden_size * num_tokens**2
        arithmetic = gpus_per_replica * self.gpu.flops_per_s * _TRAIN_EFFICIENCY
        return self.num_forwards(num_extra_forwards) * (forward + attention) / arithmetic

    def optimizer_s(self, gpus_per_replica: int, num_replicas: int) -> float:
        """Return the seconds to reduce gradients over the replicas and update the shard of every GPU."""
        if self.profile.optimizer_s is not None:
            return self.profile.optimizer_s
        shard = self.num_trained / gpus_per_replica
        reduce_s = 2 * shard * _GRADIENT_BYTES / _NETWORK_BYTES_PER_S if num_replicas > 1 else 0.0
        return reduce_s + shard * _OPTIMIZER_BYTES / num_replicas / self.gpu.bandwidth_bytes_per_s

    def publish_s(self, tp_size: int) -> float:
        """Return the seconds of a publication, in which every GPU of an engine receives its share of the weights."""
        if self.profile.publish_s is not None:
            return self.profile.publish_s
        published_bytes = self.num_trained * self.model.bytes_per_parameter
        return _PUBLISH_S + published_bytes / tp_size / _NETWORK_BYTES_PER_S

    def to_training_s(self, num_trainer_gpus: int) -> float:
        """Return the seconds in which engines free their memory and the trainer's state comes back from the host."""
        if self.profile.to_training_s is not None:
            return self.profile.to_training_s
        frozen_bytes = 0.0 if self.lora_rank is None else self.model.num_parameters * _ACTIVATION_BYTES
        frozen_s = frozen_bytes / num_trainer_gpus / _HOST_LINK_BYTES_PER_S
        return _SWITCH_S + self._trainer_state_s(num_trainer_gpus) + frozen_s

    def migration_s(self) -> float:
        """Return the seconds in which requests leave their engine, besides their recomputation (`prefill_s`)."""
        return self.profile.migration_s or 0.0

    def to_rollout_s(self, num_trainer_gpus: int) -> float:
        """Return the seconds in which the trainer's state goes to the host; the weights arrive with the publication."""
        if self.profile.to_rollout_s is not None:
            return self.profile.to_rollout_s
        return _SWITCH_S + self._trainer_state_s(num_trainer_gpus)

    def regroup_s(self, tp_size: int) -> float:
        """Return the seconds to rebuild engines with that tensor-parallel size."""
        if self.profile.regroup_s is not None:
            return self.profile.regroup_s
        return _REGROUP_S + self.model.weight_bytes / tp_size / _HOST_LINK_BYTES_PER_S

    def _overhead_s(self, num_running: int) -> float:
        step_s, request_s = self.profile.step_overhead_s, self.profile.request_overhead_s
        step_s = _STEP_OVERHEAD_S if step_s is None else step_s
        return step_s + num_running * (_REQUEST_OVERHEAD_S if request_s is None else request_s)

    def _all_reduces_s(self, num_running: int, tp_size: int) -> float:
        if tp_size == 1:
            return 0.0
        message = num_running * self.model.hidden_size * _ACTIVATION_BYTES
        transfer_s = 2 * message * (tp_size - 1) / tp_size / self.gpu.link_bytes_per_s
        return self.model.num_layers * _ALL_REDUCES_PER_LAYER * (_ALL_REDUCE_LATENCY_S + transfer_s)

    def _trainer_state_s(self, num_trainer_gpus: int) -> float:
        """Return the seconds in which a GPU's share of weights, gradients and moments crosses its link to the host.

        Frozen weights stay there once they are.
        """
        return self.num_trained * _TRAINER_STATE_BYTES / num_trainer_gpus / _HOST_LINK_BYTES_PER_S
