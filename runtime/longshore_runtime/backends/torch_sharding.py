"""Replicas whose ranks each have a shard of every tensor (torch's FSDP2), and compute in the type that the job wants.

A layer is whole on a rank while it computes, in that type; its gradients are added up over the replica's ranks right
after, in float32, so that each keeps its shard of the sum. Over replicas nothing is added up before the update.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from longshore.api.training import Lora
from longshore_runtime.backends.accumulation import norm
from longshore_runtime.backends.causal_lm import CausalLM, T
from longshore_runtime.backends.compiled_layers import layers
from longshore_runtime.backends.devices import HOST
from longshore_runtime.backends.hf_mapping.files import TensorFiles
from longshore_runtime.backends.parallel_sizes import ParallelSizes
from longshore_runtime.backends.pretrained import empty_pretrained
from longshore_runtime.backends.spread_experts import spread_experts, spread_mistake
from longshore_runtime.backends.sums import GradientSums
from longshore_runtime.backends.torch_replica import Replica
from longshore_runtime.backends.torch_world import TIMEOUT, join
from longshore_runtime.backends.value_model import HEAD, HEAD_WEIGHT, ValueModel
from longshore_runtime.backends.world import World

_ROUNDING: Final = 0.03
"""Relative difference of hidden states that two kernels may show which compute in bfloat16."""


def join_replica(world: World, sizes: ParallelSizes, device: torch.device, dtype: torch.dtype) -> Replica:
    """Meet the other ranks, and compute in `dtype`; raises ValueError unless replicas of these sizes fill the world."""
    sizes.check_world(world.size)
    is_plain = sizes.fsdp == 1 and dtype is torch.float32
    if world.size > 1 or not is_plain:
        join(world, device)
    return Replica(world, device) if is_plain else ShardedReplica(world, device, sizes, dtype)


class ShardedReplica(Replica):
    """Replica of `size` consecutive ranks, which call each method together, except `own`, `spread` and `rows`.

    One rank alone has a shard that is everything, so that FSDP makes the copies of layers in another type.
    """

    def __init__(self, world: World, device: torch.device, sizes: ParallelSizes, dtype: torch.dtype) -> None:
        """Form all groups of ranks now, because later some ranks may sleep."""
        super().__init__(world, device)
        size = sizes.fsdp
        mesh = init_device_mesh(device.type, (world.size // size, size), mesh_dim_names=("replicas", "shards"))
        self._mesh = mesh["shards"]
        self._shards = mesh.get_group("shards")
        self._same_shard = mesh.get_group("replicas")
        for group in (self._shards, self._same_shard):
            distributed_c10d._set_pg_timeout(TIMEOUT, group)  # NCCL's groups of a mesh have ten minutes.
        self._size = size
        self._computation = Computation(dtype, spreads_experts=sizes.spreads_experts)
        self._rank = world.rank % size
        # Not that of `shards`: what a thread writes must not meet what ranks compute meanwhile.
        self._writing = dist.new_group(range(size), TIMEOUT, backend="gloo") if size > 1 else None

    @property
    def number(self) -> int:
        """Number of the replica among those of the world."""
        return self._world.rank // self._size

    @property
    def is_first_rank(self) -> bool:
        """Whether this rank is the first of its replica, which reports for all."""
        return self._rank == 0

    def load(self, directory: Path, lora: Lora | None = None, *, replays_experts: bool = False) -> CausalLM:
        """Read this rank's shards of a model; all ranks of the replica must call this together."""
        computation = self._computation
        return ShardedCausalLM(directory, self._mesh, self._device, computation, lora, replays_experts=replays_experts)

    def load_value_model(self, directory: Path) -> ValueModel:
        """Read this rank's shards of a value model; all ranks of the replica must call this together."""
        return ShardedValueModel(directory, self._mesh, self._device, self._computation)

    def passes(self, micro_batches: list[list[int]]) -> list[list[int]]:
        """Return equally many passes on every rank, since ranks compute together; the last ones may be empty."""
        most = torch.tensor(len(micro_batches), device=self._device)
        dist.all_reduce(most, dist.ReduceOp.MAX, group=self._shards)
        return micro_batches + [[] for _ in range(int(most) - len(micro_batches))]

    def total(self, sums: GradientSums) -> GradientSums:
        """Return the sum over the ranks of the replica."""
        gathered = list[Any]([None]) * self._size
        dist.all_gather_object(gathered, sums, group=self._shards)
        return sum(gathered, GradientSums())

    def add_up(self, values: Tensor) -> None:
        """Sum over the ranks that have the same shard."""
        dist.all_reduce(values, group=self._same_shard)

    def norm(self, values: Tensor) -> float:
        """Return the norm over all shards."""
        squares = torch.tensor(norm(values), dtype=torch.float64, device=values.device).square()
        dist.all_reduce(squares, group=self._shards)
        return squares.sqrt().item()

    def own(self, tensor: Tensor) -> Tensor:
        """Return the shard."""
        return _own(tensor)

    def spread(self, own: Tensor, like: Tensor) -> Tensor:
        """See `Replica`; memory is shared only with values on the device."""
        parameter = cast(DTensor, like)
        own = own.view_as(self.own(parameter))
        return DTensor.from_local(
            own, self._mesh, parameter.placements, run_check=False, shape=parameter.shape, stride=parameter.stride()
        )

    @torch.no_grad()
    def whole(self, tensor: Tensor) -> Tensor:
        """See `Replica`; the result is on the device, also for a tensor on the host."""
        return self._gathered(self.own(tensor), len(tensor), self._device, self._shards)

    @torch.no_grad()
    def whole_on_host(self, own: Tensor, num_rows: int) -> Tensor:
        """See `Replica`."""
        return self._gathered(own, num_rows, HOST, self._writing)

    def _gathered(self, shard: Tensor, num_rows: int, device: torch.device, group: dist.ProcessGroup | None) -> Tensor:
        if self._size == 1:
            return shard.to(device)
        most_rows = -(-num_rows // self._size)  # The last ranks may have fewer rows or none.
        padded = torch.zeros(most_rows, *shard.shape[1:], dtype=shard.dtype, device=device)
        padded[: len(shard)] = shard
        gathered = padded.new_empty(self._size * most_rows, *shard.shape[1:])
        dist.all_gather_into_tensor(gathered, padded, group=group)
        return gathered[:num_rows]

    def rows(self, parameter: Tensor) -> slice:
        """See `Replica`."""
        return _rows(parameter)

    @property
    def group(self) -> dist.ProcessGroup | None:
        """See `Replica`."""
        return self._shards if self._size > 1 else None

    @property
    def writing_group(self) -> dist.ProcessGroup | None:
        """See `Replica`."""
        return self._writing


def _own(tensor: Tensor) -> Tensor:
    return cast(DTensor, tensor.detach()).to_local()


def _rows(parameter: Tensor) -> slice:
    """Return the rows of a shard. FSDP2 cuts along the first dimension."""
    distributed = cast(DTensor, parameter)
    shape, (first, *_) = compute_local_shape_and_global_offset(
        distributed.shape, distributed.device_mesh, distributed.placements
    )
    return slice(first, first + shape[0])


@dataclass(frozen=True)
class Computation:
    """How layers compute."""

    dtype: torch.dtype
    spreads_experts: bool
    """Whether tokens are sent to the experts, which otherwise are put together on every rank."""


class ShardedCausalLM(CausalLM):
    """A model that is sharded layer by layer; everything outside of layers is one unit."""

    def __init__(
        self,
        directory: Path,
        mesh: DeviceMesh,
        device: torch.device,
        computation: Computation,
        lora: Lora | None = None,
        *,
        replays_experts: bool = False,
    ) -> None:
        """See `CausalLM`. Every rank of the mesh reads its shards, and computes what is needed to verify the model."""
        self._mesh, dtype = mesh, computation.dtype
        self._spreads_experts = computation.spreads_experts
        # Weights that are not trained are held as layers compute with them.
        self._held_dtype = torch.float32 if lora is None else dtype
        self._policy = MixedPrecisionPolicy()
        if dtype is not torch.float32:
            self._policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
            self.rounding = _ROUNDING
        super().__init__(directory, device, lora, replays_experts=replays_experts)

    def _open(self, directory: Path) -> Any:
        return empty_pretrained(directory, self._held_dtype, self.device)

    @torch.no_grad()
    def _move_to_device(self, files: TensorFiles) -> None:
        """Make shards of the model, which has no weights yet, and read them; one tensor is in host memory at a time."""
        self._shard()
        apply: Any = self._apply
        # With zeros, an adapter changes nothing until it gets its values.
        apply(lambda tensor: torch.zeros_like(tensor, device=self.device) if tensor.is_meta else tensor)
        for name, parameter in self.file_names.parameters():
            _own(parameter).copy_(self._stored(name, files, _rows(parameter)))
        for part, buffer in self.file_names.buffers():
            buffer.copy_(files.read(part))
        self.file_names.require_same_values(_own, _rows)

    def _stored(self, name: str, files: TensorFiles, rows: slice) -> Tensor:
        """Read rows of a parameter."""
        return self.file_names.together(name, files, rows)

    def _shard(self) -> None:
        mesh = self._mesh
        apart = set[torch.nn.Parameter]()
        if self._spreads_experts:
            self.spread_mistake = spread_mistake(self.module, mesh.size())
            apart = apart if self.spread_mistake else spread_experts(self.module, mesh)
        for layer in reversed(list(layers(self.module))):
            fully_shard(layer, mesh=mesh, mp_policy=self._policy, ignored_params=apart)
        root: Any = fully_shard(self, mesh=mesh, mp_policy=self._policy, ignored_params=apart)
        for module in root.modules():
            if isinstance(module, FSDPModule):
                # Gradients are sums, also over ranks.
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)
        # Experts that are put together may be used on one rank only.
        root.set_reduce_scatter_unused_params(True)

    def _run(self, compute: Callable[[], T]) -> T:
        """Make a pass, which all ranks must make together, even those without samples."""
        try:
            return super()._run(compute)
        finally:
            if not torch.is_grad_enabled():
                # Until a backward pass, and some models have none, FSDP keeps what is around the layers whole.
                cast(FSDPModule, self).reset_iter_state()


class ShardedValueModel(ValueModel, ShardedCausalLM):
    """A value model that is sharded layer by layer; the head is a unit of its own, which computes in float32."""

    def _shard(self) -> None:
        fully_shard(self.module.get_submodule(HEAD), mesh=self._mesh)
        super()._shard()

    def _stored(self, name: str, files: TensorFiles, rows: slice) -> Tensor:
        """Read rows of a parameter; the head, which files do not have, begins as zeros."""
        return torch.zeros(()) if name == HEAD_WEIGHT else super()._stored(name, files, rows)
