"""Engines of another size than the configured one, and in images without a compiler."""

import pytest

from longshore.api.rollout import EngineSettings
from longshore_runtime.backends.engine_spec import EngineSpec


@pytest.mark.parametrize(("tp_size", "kv_bytes"), [(1, 2 << 30), (2, 4 << 30), (4, 8 << 30)])
def test_every_gpu_holds_as_much_kv_cache_whatever_the_size_of_the_engines(tp_size: int, kv_bytes: int) -> None:
    spec = EngineSpec(EngineSettings(tensor_parallel_size=2, kv_cache="4Gi"), max_context_tokens=256, seed=5)
    regrouped = spec.regrouped(tp_size)
    assert (regrouped.options.tensor_parallel_size, regrouped.options.kv_cache) == (tp_size, kv_bytes)
    assert (regrouped.seed, regrouped.max_context_tokens) == (5, 256)


def test_a_kv_cache_that_takes_what_is_left_does_so_at_every_size() -> None:
    spec = EngineSpec(EngineSettings(max_num_seqs=7), max_context_tokens=256).regrouped(4)
    assert (spec.options.kv_cache, spec.options.max_num_seqs) == (None, 7)


def test_without_a_compiler_engines_on_the_cpu_run_eagerly_and_others_as_asked() -> None:
    spec = EngineSpec(EngineSettings(max_num_seqs=7), max_context_tokens=256)
    eager = spec.without_compiler()
    assert (eager.options.enforce_eager, eager.options.max_num_seqs) == (True, 7)
    assert eager.without_compiler() is eager
    on_gpu = EngineSpec(EngineSettings(), max_context_tokens=256, accelerator=True)
    assert on_gpu.without_compiler() is on_gpu
