"""What only a GPU can show: bf16 layers train what fp64 ones would, and nothing takes memory before it is needed."""

import gc
import multiprocessing
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.attention import current_flash_attention_impl, restore_flash_attention_impl

from longshore.api.training import Recompute, TrainerDtype
from longshore_runtime.backends.attention_kernels import PACKED
from longshore_runtime.backends.flash_attention import (
    attention_and_gradients,
    newest_flash_attention,
    use_newest_flash_attention,
)
from longshore_runtime.backends.pretrained import load_pretrained
from longshore_runtime.backends.shared_buffer import open_buffer
from longshore_runtime.backends.trainer_protocol import Sample, Trainer, TrainerOptions
from longshore_runtime.backends.weight_sender import WeightSender, read
from longshore_runtime.backends.world import World
from longshore_runtime.trainer.group import step_denominator
from longshore_runtime.weights.shared import BucketPart, BufferHandle
from tests.contract.trainers.plans import BATCHES, SOME_CLIPPED, apart, count_tokens, plain
from tests.contract.trainers.replicas import OPTIONS, Kind, make_samples, with_masks, without_kl
from tests.contract.trainers.test_mixtures import gradients
from tests.contract.trainers.test_verification import DENOMINATOR, SAMPLES, dropped
from tests.contract.trainers.tiny_models import MIXTURES, Family, build

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]

BF16 = 0.02
"""Relative error of gradients whose layers compute in bf16."""
PARTS = [SAMPLES[:5], SAMPLES[5:6], SAMPLES[6:]]
OFFLOADED = replace(without_kl(), offload_gradients=True)


@pytest.fixture(params=["torch", "megatron"])
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> Kind:
    """Trainers of a tiny model."""
    return Kind(request.param, build(tmp_path, Family("qwen3", tied=False)))


@pytest.mark.parametrize("dtype", [TrainerDtype.FLOAT32, TrainerDtype.BFLOAT16])
def test_experts_computed_at_once_have_the_gradients_of_one_after_the_other(
    dtype: TrainerDtype, tmp_path: Path
) -> None:
    model, options = build(tmp_path, MIXTURES[0]), replace(without_kl(), dtype=dtype)
    found, expected = (gradients(World(), model, options, one) for one in ("grouped_mm", "eager"))
    assert apart(found, expected) < BF16


@pytest.fixture(scope="module")
def large_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights of 1.3 GB, beside which the workspaces of libraries (about 0.1 GB) are small."""
    shape = {"hidden_size": 2_048, "intermediate_size": 8_192, "num_hidden_layers": 5}
    return build(tmp_path_factory.mktemp("large"), Family("llama", tied=False), **shape)


@pytest.fixture(params=["torch", "megatron"])
def large(request: pytest.FixtureRequest, large_model: Path) -> Iterator[Kind]:
    """Trainers of that model, on a device that nothing else uses."""
    gc.collect()
    torch.cuda.empty_cache()
    yield Kind(request.param, large_model)


def test_steps_are_those_of_a_plain_run_in_double_precision(kind: Kind) -> None:
    trainer, expected = kind.start(SOME_CLIPPED), plain(kind.model)
    norms = []
    for batch in BATCHES:
        trainer.accumulate(batch[:5])
        trainer.accumulate(batch[5:])
        norms.append(trainer.update(count_tokens(batch)).grad_norm)
    assert norms == pytest.approx(expected.norms, rel=BF16)


@pytest.mark.parametrize("options", [without_kl(), OFFLOADED], ids=["on the device", "offloaded"])
def test_memory_is_taken_when_it_is_needed_and_given_back(large: Kind, options: TrainerOptions) -> None:
    """In units of the weights: gradients are as large, and the optimizer's state twice as large."""
    trainer = large.start(options)
    size = sum(values.nbytes for _, values in trainer.weights())

    def taken() -> float:
        return round(torch.cuda.memory_allocated() / size * 4) / 4

    for _ in range(2):
        trainer.accumulate(PARTS[0])
        assert taken() == (1 if options.offload_gradients else 2)
        trainer.sleep()
        assert taken() == 0, "also in the middle of a step"
        trainer.wake()
        assert taken() == 1
        trainer.accumulate(PARTS[1])
        torch.cuda.reset_peak_memory_stats()
        trainer.update(100.0)
        assert torch.cuda.max_memory_allocated() / size < 4.5, "weights, gradients and moments, and no copies of them"
        assert taken() == 3
        trainer.sleep()
        assert taken() == 0
        trainer.wake()
        assert taken() == 1, "the optimizer's state waits for the update"


def test_memory_on_the_host_is_pinned_and_kept(large: Kind) -> None:
    trainer: Any = large.start(without_kl())
    kept = []
    for _ in range(2):
        trainer.accumulate(PARTS[0])
        trainer.update(100.0)
        trainer.sleep()
        tensors = _kept(trainer._weights) + _kept(trainer._moments)
        weights = sum(values.nbytes for _, values in trainer.weights())
        assert sum(tensor.nbytes for tensor in tensors) == pytest.approx(3 * weights, rel=0.01)
        assert all(tensor.is_pinned() for tensor in tensors)
        kept.append([tensor.data_ptr() for tensor in tensors])
        trainer.wake()
    assert kept[0] == kept[1]


def _kept(memory: Any) -> list[torch.Tensor]:
    kept = memory._kept
    return list(kept.values()) if isinstance(kept, dict) else kept


@pytest.mark.parametrize("offload", [False, True])
def test_moments_leave_before_the_pass_that_follows_an_update(large: Kind, offload: bool) -> None:
    trainer = large.start(replace(without_kl(), offload_moments=offload))
    size = sum(values.nbytes for _, values in trainer.weights())
    for _ in range(2):
        trainer.accumulate(PARTS[0])
        trainer.update(100.0)
    trainer.accumulate(PARTS[2])
    assert round(torch.cuda.memory_allocated() / size * 4) / 4 == (2 if offload else 4)


@pytest.mark.parametrize("is_read", [False, True])
def test_sending_weights_gives_back_what_it_took(large: Kind, is_read: bool) -> None:
    """Also the memory that torch would keep for later: an engine's KV cache wants it."""
    trainer = large.start(without_kl())
    trainer.accumulate(PARTS[0])
    trainer.sleep()
    before = torch.cuda.memory_reserved()
    with multiprocessing.get_context("spawn").Pool(1) as reader:
        for _ in range(3):
            sender = WeightSender(trainer.tensors(), torch.device("cuda"), 64 << 20, is_read=is_read)
            while (part := sender.fill()) is not None:
                assert torch.cuda.memory_reserved() > before
                if is_read:
                    reader.apply(read_buffer, (part,))
            reader.apply(let_go)
            sender.close()
            assert torch.cuda.memory_reserved() == before


OPENED: dict[BufferHandle, torch.Tensor] = {}


def read_buffer(part: BucketPart) -> None:
    """In another process, like a worker of an engine."""
    assert part.buffer is not None
    if part.buffer not in OPENED:
        OPENED[part.buffer] = open_buffer(part.buffer, torch.device("cuda"))
    assert all(read(part, OPENED[part.buffer]))


def let_go() -> None:
    """There."""
    OPENED.clear()


@pytest.mark.parametrize("offload", [False, True])
def test_a_reference_takes_memory_while_it_computes_and_where_it_may_stay(large: Kind, offload: bool) -> None:
    trainer = large.start(replace(OPTIONS, offload_reference=offload))
    size = sum(values.nbytes for _, values in trainer.weights())
    for _ in range(2):
        trainer.accumulate(PARTS[0])
        assert round(torch.cuda.memory_allocated() / size * 4) / 4 == (2 if offload else 3)
        trainer.sleep()
        assert torch.cuda.memory_allocated() < size / 4
        trainer.wake()


def test_passes_of_new_shapes_make_no_plans(kind: Kind) -> None:
    """cuDNN's attention would, for about a second each; torch prefers it on Hopper and Blackwell."""
    trainer = kind.start(without_kl())
    with torch.profiler.profile() as profile:
        trainer.accumulate(SAMPLES)
    attention = {event.key for event in profile.key_averages() if "_attention" in event.key}
    assert any("flash" in name for name in attention)
    assert not any("cudnn" in name for name in attention)


def test_a_reference_that_waits_on_the_host_gives_the_same_step(kind: Kind) -> None:
    norms = [
        step_norm(kind.start(replace(OPTIONS, offload_reference=offload)), SAMPLES, naps=False)
        for offload in (False, True)
    ]
    assert norms[1] == pytest.approx(norms[0], rel=1e-3)


@pytest.mark.parametrize("options", [without_kl(), OFFLOADED], ids=["on the device", "offloaded"])
def test_a_step_with_naps_in_it_equals_one_without(kind: Kind, options: TrainerOptions) -> None:
    awake, drowsy = kind.start(without_kl()), kind.start(options)
    for batch in (SAMPLES, with_masks(make_samples(seed=1))):
        norms = [step_norm(awake, batch, naps=False), step_norm(drowsy, batch, naps=True)]
        assert norms[1] == pytest.approx(norms[0], rel=1e-3)


def step_norm(trainer: Trainer, batch: list[Sample], *, naps: bool) -> float:
    for start in range(0, len(batch), 4):
        trainer.accumulate(batch[start : start + 4])
        if naps:
            trainer.sleep()
    return trainer.update(step_denominator(batch, without_kl())).grad_norm


def test_a_sleeping_trainer_saves_and_loads(kind: Kind, tmp_path: Path) -> None:
    trainer, other = kind.start(), kind.start()
    trainer.accumulate(SAMPLES)
    trainer.update(DENOMINATOR)
    trainer.sleep()
    trainer.begin_save(tmp_path / "saved")()
    other.sleep()
    other.load(tmp_path / "saved")
    one, same = dict(trainer.weights()), dict(other.weights())
    assert all((one[name] == same[name]).all() for name in one)
    for each in (trainer, other):
        each.accumulate(SAMPLES)
        each.update(DENOMINATOR)
    one, same = dict(trainer.weights()), dict(other.weights())
    assert all(np.allclose(one[name], same[name], rtol=1e-3, atol=1e-5) for name in one)


@pytest.mark.parametrize("offload", [False, True])
def test_rounding_is_distinguished_from_a_lost_sample(kind: Kind, offload: bool) -> None:
    trainer = kind.start(replace(SOME_CLIPPED, offload_gradients=offload))
    for part in PARTS:
        trainer.accumulate(part)
    assert trainer.compare(SAMPLES, DENOMINATOR) < BF16
    trainer.discard()
    trainer.accumulate(dropped(SAMPLES))
    assert trainer.compare(SAMPLES, DENOMINATOR) > BF16


def test_the_newest_flash_attention_computes_what_torch_does_without_it(tmp_path: Path) -> None:
    config = load_pretrained(build(tmp_path, Family("qwen3", tied=False), head_dim=128), torch.float32).config
    config._attn_implementation = PACKED
    device = torch.device("cuda")
    expected = attention_and_gradients(device, 128)
    use_newest_flash_attention(device, config)
    chosen = newest_flash_attention(torch.cuda.get_device_capability()[0])
    try:
        assert current_flash_attention_impl() == chosen
        found = attention_and_gradients(device, 128)
    finally:
        if chosen is not None:
            restore_flash_attention_impl()
    for one, other in zip(found, expected, strict=True):
        assert torch.dist(one, other) < BF16 * other.norm()


@pytest.mark.parametrize("recompute", list(Recompute))
def test_compiled_layers_have_the_gradients_of_others(recompute: Recompute, tmp_path: Path) -> None:
    model = build(tmp_path, Family("qwen3", tied=False))
    options = replace(without_kl(), recompute=recompute)
    norms = [
        step_norm(Kind("torch", model).start(one), SAMPLES, naps=False)
        for one in (options, replace(options, torch_compile=True))
    ]
    assert norms[1] == pytest.approx(norms[0], rel=BF16)
