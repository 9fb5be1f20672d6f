"""Attention that computes with kernels for every shape, and parts of it for which torch's kernels need no mask."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from longshore_runtime.backends.megatron.attention import CausalAttention
from longshore_runtime.backends.megatron.context import positions
from longshore_runtime.backends.streamed_lm.model import StreamedLM, StreamOptions
from tests.contract.trainers.replicas import Kind, make_samples, without_kl
from tests.contract.trainers.tiny_models import Family, build


@pytest.fixture(autouse=True)
def all_kernels() -> Iterator[None]:
    """As a process begins; nothing else in it asks which are on."""
    torch.backends.cuda.enable_cudnn_sdp(True)
    yield
    torch.backends.cuda.enable_cudnn_sdp(True)


def plans_are_made() -> bool:
    """Whether torch may choose cuDNN's attention in this process."""
    allowed: bool = torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
    return allowed


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("model"), Family("qwen3", tied=False))


@pytest.mark.parametrize("name", ["torch", "megatron"])
def test_a_trainer_computes_without_kernels_that_are_planned_for_each_shape(name: str, model: Path) -> None:
    Kind(name, model).start(without_kl()).accumulate(make_samples()[:2])
    assert not plans_are_made()


def test_so_does_a_judge(model: Path) -> None:
    StreamedLM.load(model, torch.device("cpu"), StreamOptions()).generate([[3, 4, 5]], 2, ())
    assert not plans_are_made()


@dataclass
class Group:
    """Ranks that share the tokens of a sequence."""

    num_ranks: int
    own: int

    def size(self) -> int:
        return self.num_ranks

    def rank(self) -> int:
        return self.own


class OneRank(CausalAttention):
    """A rank that the others have sent what they hold."""

    def __init__(self, group: Group) -> None:
        super().__init__(config=None, softmax_scale=0.3, pg_collection=SimpleNamespace(cp=group))

    def of(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attention of this rank's tokens, given all tokens in their order."""
        size, rank = self._group.size(), self._group.rank()
        self._everywhere = torch.cat([positions(len(query), size, other) for other in range(size)])
        self._all = [key, value]
        mine = positions(len(query), size, rank)
        return self.forward(query[mine], key[mine], value[mine], None)

    def _gather(self, part: Tensor) -> Tensor:
        return self._all.pop(0)[self._everywhere]


def heads(num_tokens: int, *dtypes: torch.dtype) -> list[Tensor]:
    """Queries, keys and values, [tokens, batch, heads, head dim] each; every key is for two queries."""
    torch.manual_seed(0)
    shapes = [(num_tokens, 2, count, 16) for count in (4, 2, 2)]
    return [torch.randn(*shape, dtype=dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]


@pytest.mark.parametrize("size", [2, 3, 4])
def test_the_ranks_of_a_context_compute_what_one_would(size: int) -> None:
    query, key, value = heads(12 * size, *[torch.float64] * 3)
    queries, keys, values = (part.permute(1, 2, 0, 3) for part in (query, key, value))
    whole = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True, scale=0.3, enable_gqa=True)
    expected = whole.permute(2, 0, 1, 3).flatten(2)
    for rank in range(size):
        found = OneRank(Group(size, rank)).of(query, key, value)
        torch.testing.assert_close(found, expected[positions(len(query), size, rank)])


@pytest.mark.parametrize(
    "dtypes",
    [(torch.bfloat16,) * 3, (torch.float32,) * 3, (torch.float32, torch.float32, torch.bfloat16)],
    ids=["llama", "qwen2 adds a bias", "qwen3 norms queries and keys"],
)
def test_autocast_reaches_attention_before_a_kernel_is_chosen(
    dtypes: tuple[torch.dtype, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels without a matrix of scores compute in bf16."""
    asked = []

    def can_use(parameters: Any) -> bool:
        asked.append({parameters.query.dtype, parameters.key.dtype, parameters.value.dtype})
        return False

    monkeypatch.setattr("torch.nn.attention.bias.can_use_flash_attention", can_use)
    with torch.autocast("cpu", torch.bfloat16):
        assert OneRank(Group(2, 1)).of(*heads(16, *dtypes)).dtype == torch.bfloat16
    assert asked == [{torch.bfloat16}] * len(asked) != []


def test_a_mask_takes_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """As large as the matrix of scores, it would take 512 GiB here."""
    masks: list[Any] = []

    def attend(query: Tensor, key: Tensor, value: Tensor, *, attn_mask: Any, **_: Any) -> Tensor:
        masks.append(attn_mask)
        return query

    monkeypatch.setattr(functional, "scaled_dot_product_attention", attend)
    query = torch.empty(1, 1, 1, 1).expand(1 << 17, -1, -1, -1)
    OneRank(Group(2, 0)).of(query, query, query)
    lengths = [(mask.seq_len_q, mask.seq_len_kv, mask.untyped_storage().nbytes()) for mask in masks if mask is not None]
    assert lengths == [(1 << 15, 1 << 17, 0)]
