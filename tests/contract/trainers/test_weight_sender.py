"""Ranks write parameters of any size into buckets of any size; readers get them whole, and can prove it."""

import contextlib
import gc
import multiprocessing
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from longshore_runtime.backends import shared_buffer
from longshore_runtime.backends.shared_buffer import open_buffer
from longshore_runtime.backends.weight_sender import Assembly, Named, WeightSender, read, tensor_checksum
from longshore_runtime.weights.buckets import Receipt, combined_checksum
from longshore_runtime.weights.shared import BucketPart, BufferHandle, SharedBucket, Slot
from tests.properties import examples

CPU = torch.device("cpu")
SHAPES = st.lists(
    st.one_of(st.just(()), st.tuples(st.integers(0, 60)), st.tuples(st.integers(1, 9), st.integers(1, 9)))
)
DTYPES = st.sampled_from([torch.float32, torch.bfloat16])


def parameters(shapes: list[tuple[int, ...]], dtype: torch.dtype) -> list[Named]:
    """With these shapes; every other matrix lies in memory by columns."""
    random = torch.Generator().manual_seed(0)
    values = [torch.randn(shape, generator=random).to(dtype) for shape in shapes]
    laid_out = [one.t().contiguous().t() if one.ndim == 2 and index % 2 else one for index, one in enumerate(values)]
    return [(f"p{index}", one, None) for index, one in enumerate(laid_out)]


Written = list[tuple[BucketPart, list[tuple[Slot, Tensor]]]]
"""Buckets, and what was in them before they were overwritten."""


def written(named: list[Named], bucket_bytes: int, *, in_bfloat16: bool = False) -> Written:
    """All of them."""
    sender = WeightSender(iter(named), CPU, 2 * bucket_bytes)
    buckets = []
    while (part := sender.fill(in_bfloat16=in_bfloat16)) is not None:
        assert part.buffer is not None
        buckets.append((part, list(read(part, open_buffer(part.buffer, CPU)))))
    sender.close()
    return buckets


def received(buckets: Written) -> dict[str, Tensor]:
    """What a reader has after all of them."""
    assembly, whole = Assembly(), {}
    for _, contents in buckets:
        for slot, values in contents:
            value = assembly.add(slot.name, values, slot.checksum.shape, slot.checksum.start)
            if value is not None:
                assert slot.name not in whole
                whole[slot.name] = value
    return whole


@settings(max_examples=examples(60), deadline=None)
@given(SHAPES, DTYPES, st.integers(0, 200))
def test_parameters_arrive_as_they_are_whatever_the_size_of_buckets(
    shapes: list[tuple[int, ...]], dtype: torch.dtype, bucket_bytes: int
) -> None:
    named = parameters(shapes, dtype)
    buckets = written(named, bucket_bytes)
    assert all(part.num_bytes <= max(16, bucket_bytes) for part, _ in buckets)
    arrived = received(buckets)
    assert list(arrived) == [name for name, _, _ in named]
    assert all(torch.equal(arrived[name], values) for name, values, _ in named)
    receipt = Receipt(arrived)
    for part, _ in buckets:
        receipt.take(SharedBucket((part,)).checksums)
    whole = {name: tensor_checksum(values.reshape(-1), tuple(values.shape)) for name, values, _ in named}
    assert receipt.complete() == combined_checksum([whole])


def test_matrices_are_rounded_for_engines_that_hold_bfloat16_and_other_values_stay() -> None:
    """A bias of a router that is off by its rounding lets engines choose other experts."""
    matrix, bias, counters = torch.randn(3, 4), torch.full((4,), 7.01), torch.arange(10).view(2, 5)
    buckets = written(
        [("matrix", matrix, None), ("bias", bias, None), ("counters", counters, None)], 16, in_bfloat16=True
    )
    arrived = received(buckets)
    assert torch.equal(arrived["matrix"], matrix.bfloat16())
    assert torch.equal(arrived["bias"], bias) and torch.equal(arrived["counters"], counters)
    assert sum(slot.num_bytes for part, _ in buckets for slot in part.slots) == 2 * 12 + bias.nbytes + counters.nbytes


@settings(max_examples=examples(30), deadline=None)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 100))
def test_equal_parts_of_ranks_are_cut_alike(rows: int, columns: int, bucket_bytes: int) -> None:
    own = [torch.randn(rows, columns) for _ in range(2)]
    ranks = [written([("a", values, 0)], bucket_bytes) for values in own]
    assert all(torch.equal(received(buckets)["a"], values) for buckets, values in zip(ranks, own, strict=True))
    receipts = []
    for pair in (ranks, ranks[::-1]):
        receipts.append(Receipt(["a"]))
        for (one, _), (other, _) in zip(*pair, strict=True):
            receipts[-1].take(SharedBucket((one, other)).checksums)
    assert (receipts[0].complete() == receipts[1].complete()) == torch.equal(own[0], own[1])


def test_a_slice_that_was_not_written_where_it_is_said_to_be_is_noticed() -> None:
    sender = WeightSender(iter(parameters([(20,)], torch.float32)), CPU, 2 * 32)
    part = sender.fill()
    assert part is not None
    assert part.buffer is not None
    (slot,) = part.slots
    moved = replace(slot, checksum=replace(slot.checksum, start=8, stop=16))
    with pytest.raises(ValueError, match="other values of 'p0' than were written"):
        list(read(replace(part, slots=(moved,)), open_buffer(part.buffer, CPU)))
    sender.close()


def test_what_nobody_reads_is_not_shared() -> None:
    sender = WeightSender(iter(parameters([(20,)], torch.float32)), CPU, 2 * 32, is_read=False)
    part = sender.fill()
    assert part is not None
    assert part.buffer is None
    sender.close()


def test_another_process_reads_what_is_written_and_a_killed_writer_leaves_nothing() -> None:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    writer = context.Process(target=write_and_stay, args=(theirs,))
    writer.start()
    part = ours.recv()
    (_, values), *_ = read(part, open_buffer(part.buffer, CPU))
    writer.kill()
    writer.join()
    assert torch.equal(values, parameters([(20,)], torch.float32)[0][1])
    with pytest.raises(FileNotFoundError):
        open_buffer(part.buffer, CPU)


def test_nothing_remains_of_a_sender_that_is_abandoned() -> None:
    """As when an update fails in the middle."""
    sender = WeightSender(iter(parameters([(20,)], torch.float32)), CPU, 2 * 128)
    part = sender.fill()
    assert part is not None and part.buffer is not None
    open_buffer(part.buffer, CPU)
    assert is_in_use(part.buffer)
    del sender
    gc.collect()
    assert not is_in_use(part.buffer)


def is_in_use(buffer: BufferHandle) -> bool:
    """Whether this process has it open or mapped."""
    opened = []
    for file in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # Other threads close files meanwhile.
            found = file.stat()
            opened.append((found.st_dev, found.st_ino))
    maps = [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if "longshore-weights" in line]
    return buffer.identity in opened or str(buffer.identity[1]) in (mapped[4] for mapped in maps)


def test_what_has_the_path_of_a_closed_buffer_is_neither_read_nor_changed(tmp_path: Path) -> None:
    sender = WeightSender(iter(parameters([(20,)], torch.float32)), CPU, 2 * 128)
    part = sender.fill()
    assert part is not None and part.buffer is not None
    sender.close()
    other = tmp_path / "other"
    other.write_text("short")
    with other.open("r+b") as file:
        reused = replace(part.buffer, file=f"/proc/self/fd/{file.fileno()}")
        with pytest.raises(RuntimeError, match="its owner has closed it"):
            open_buffer(reused, CPU)
    assert other.read_text() == "short"


def write_and_stay(pipe: Connection) -> None:
    sender = WeightSender(iter(parameters([(20,)], torch.float32)), CPU, 2 * 128)
    pipe.send(sender.fill())
    pipe.recv()


@pytest.mark.parametrize(
    ("settings", "written"),
    [
        ("", []),
        ("max_split_size_mb:512", []),
        (
            "max_split_size_mb:512,expandable_segments:True",
            ["max_split_size_mb:512,expandable_segments:False", "max_split_size_mb:512,expandable_segments:True"],
        ),
    ],
)
def test_shared_gpu_memory_lies_in_no_expandable_segment(
    settings: str, written: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch refuses to share those, and forgets settings that are left out."""
    steps: list[str] = []
    empty = torch.empty

    def allocate(num_bytes: int, **_: object) -> Tensor:
        steps.append("allocate")
        return empty(num_bytes, dtype=torch.uint8)

    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", settings)
    monkeypatch.delenv("PYTORCH_ALLOC_CONF", raising=False)
    monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", steps.append)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch, "empty", allocate)
    monkeypatch.setattr(shared_buffer, "reduce_tensor", lambda values: (None, ("handle",)))
    shared_buffer.SharedBuffer(10, torch.device("cuda"))
    assert steps == [*written[:1], "allocate", *written[1:]]
