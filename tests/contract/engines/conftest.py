"""The engines that must behave alike."""

import contextlib
import gc
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.numpy import load_file

import tests.warm  # noqa: F401 - tensor-parallel ranks are forks of a process that has imported vLLM
from longshore.api.rollout import EngineBackend, EngineDtype, EngineSettings
from longshore_runtime.backends.engine_spec import EngineSpec
from longshore_runtime.backends.engines import create_engine
from longshore_runtime.backends.tiny_model import EOS_ID, build_tiny_model
from tests.contract.engines.harness import BUCKET_BYTES, MAX_CONTEXT_TOKENS, MAX_NUM_SEQS, NUM_KV_BLOCKS, Harness
from tests.contract.engines.overlapping import steps_that_overlap


@pytest.fixture(autouse=True)
def _engines_are_alone() -> Iterator[None]:
    """Keep the engines of a process apart; vLLM has one per process in mind.

    It ends the process groups, which all share, when an engine is collected or does not start. And an engine gets the
    rotary embedding of one before it, whose values are gone while that one has only a part of its weights.
    """
    if (core := sys.modules.get("vllm.v1.engine.core")) is not None:
        core.cleanup_dist_env_and_memory = lambda: None
    yield
    if (rotary_embedding := sys.modules.get("vllm.model_executor.layers.rotary_embedding")) is not None:
        rotary_embedding._ROPE_DICT.clear()


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint with random weights; as in most models that people train, its embeddings are tied."""
    directory = tmp_path_factory.mktemp("model")
    build_tiny_model(directory, seed=0, tied=True)
    return directory


@pytest.fixture(scope="package", autouse=True)
def _process_groups_end_with_these_tests() -> Iterator[None]:
    """Each has two threads."""
    yield
    if (parallel_state := sys.modules.get("vllm.distributed.parallel_state")) is not None:
        parallel_state.destroy_model_parallel()
        parallel_state.destroy_distributed_environment()
        gc.collect()  # Cycles hold process groups.


@pytest.fixture(scope="package")
def fake(model: Path) -> Harness:
    """The engine without a model, with the vocabulary of the checkpoint."""
    options = EngineSettings(
        backend=EngineBackend.FAKE,
        max_num_seqs=MAX_NUM_SEQS,
        extra_args={"num_kv_blocks": NUM_KV_BLOCKS, "median_tokens": 60.0},
    )
    engine = create_engine(EngineSpec(options, MAX_CONTEXT_TOKENS), model)
    return Harness(
        engine, load_file(model / "model.safetensors"), EOS_ID, kv_block_tokens=16, bucket_bytes=BUCKET_BYTES
    )


@pytest.fixture(scope="package")
def vllm(model: Path) -> Harness:
    """vLLM on the CPU, with so few KV blocks that it can be made to preempt, and steps that few prompts fill."""
    return _vllm(model)


@pytest.fixture(scope="package")
def overlapping_vllm(model: Path) -> Harness:
    """The same with asynchronous scheduling, which vLLM uses on GPUs."""
    if torch.cuda.is_available():
        pytest.skip("this engine is for machines without a GPU")
    with steps_that_overlap():
        harness = _vllm(model)
    engine: Any = harness.engine
    assert engine._engine.vllm_config.scheduler_config.async_scheduling
    return harness


@pytest.fixture(scope="package")
def narrow_vllm(model: Path) -> Harness:
    """The same in bfloat16."""
    return _vllm(model, EngineDtype.BFLOAT16)


def _vllm(model: Path, dtype: EngineDtype = EngineDtype.AUTO) -> Harness:
    options = EngineSettings(
        dtype=dtype,
        max_num_seqs=MAX_NUM_SEQS,
        enforce_eager=True,
        extra_args={"num_gpu_blocks_override": NUM_KV_BLOCKS, "max_num_batched_tokens": MAX_CONTEXT_TOKENS},
    )
    torch.set_num_threads(1)  # torch is imported here already, and read the environment then
    loaded: list[int] = []
    engine = create_engine(EngineSpec(options, MAX_CONTEXT_TOKENS), model, loaded.append)
    return Harness(
        engine,
        load_file(model / "model.safetensors"),
        EOS_ID,
        kv_block_tokens=32,
        bucket_bytes=BUCKET_BYTES,
        loaded_bytes=tuple(loaded),
    )


@pytest.fixture(params=["fake", "vllm", "overlapping_vllm"])
def harness(request: pytest.FixtureRequest) -> Iterator[Harness]:
    """One engine after the other, idle and with the weights of the checkpoint as policy version 0."""
    harness: Harness = request.getfixturevalue(request.param)
    with steps_that_overlap() if request.param == "overlapping_vllm" else contextlib.nullcontext():
        harness.publish(0)
        yield harness
        harness.finish_rest()
