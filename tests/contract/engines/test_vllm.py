"""What holds of vLLM only: the numbers are those of the model."""

import dataclasses
import multiprocessing
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from safetensors.numpy import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from longshore.api.rollout import EngineDtype, EngineSettings
from longshore.checks.engine_arguments import installed_arguments
from longshore.checks.pod_memory import CPU_KV_CACHE_BYTES
from longshore_runtime.backends.engine_protocol import FinishReason
from longshore_runtime.backends.engine_spec import EngineSpec, EngineStartError
from longshore_runtime.backends.engines import create_engine
from longshore_runtime.backends.experts import expert_modules
from longshore_runtime.backends.hf_mapping.architecture import read_architecture
from longshore_runtime.backends.hf_mapping.entries import stage_entries
from longshore_runtime.backends.weight_sender import Named, WeightSender
from longshore_runtime.trajectories.trajectory import Trajectory
from longshore_runtime.weights.shared import SharedBucket
from longshore_runtime.weights.slices import Weights
from tests.contract.engines.harness import (
    BUCKET_BYTES,
    CPU,
    MAX_CONTEXT_TOKENS,
    PROMPT,
    SMALL_BUCKET_BYTES,
    Harness,
    request,
    values,
)
from tests.contract.engines.overlapping import steps_that_overlap
from tests.contract.engines.reference import reference_log_probs
from tests.contract.trainers.tiny_models import MIXTURES, Family, build
from tests.own_process import in_own_process

BF16_LOG_PROB = 0.05
"""Difference between two passes in bf16 that group their work in other ways."""

TF32_LOG_PROB = 5e-3
"""Tolerance of fp32 on a GPU, some of whose matrices may multiply in TF32."""


def test_an_engine_that_starts_says_how_much_of_its_checkpoint_it_has_read(vllm: Harness, model: Path) -> None:
    num_bytes = sum(values.nbytes for values in load_file(model / "model.safetensors").values())
    assert len(vllm.loaded_bytes) > 2
    assert list(vllm.loaded_bytes) == sorted(vllm.loaded_bytes)
    assert vllm.loaded_bytes[-1] == num_bytes


def test_an_engine_of_several_ranks_has_read_what_the_slowest_of_them_has() -> None:
    # Every process that collects tests would import vLLM.
    from longshore_runtime.backends.vllm_loading import PIPE, loading_reported, write_to

    loaded: list[int] = []
    with loading_reported(loaded.append, num_ranks=2):
        one, two = (write_to(Path(os.environ[PIPE]), rank) for rank in (1, 2))
        for rank, num_bytes in [(one, 10), (one, 20), (two, 5), (two, 20), (one, 30), (two, 40)]:
            rank(num_bytes)
    assert loaded == [5, 20, 30]
    assert PIPE not in os.environ
    one(50)  # Nobody reads any more, which is no reason to fail.


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_log_probabilities_are_of_the_distribution_that_was_sampled(
    vllm: Harness, model: Path, temperature: float
) -> None:
    vllm.publish(0)
    (completion,) = vllm.finish([request(temperature=temperature)])
    expected = reference_log_probs(model, vllm.weights, PROMPT, completion, temperature)
    np.testing.assert_allclose(completion.trajectory.log_probs, expected, atol=2e-5)


def test_log_probabilities_follow_published_weights_behind_a_cached_prompt(vllm: Harness, model: Path) -> None:
    prompt = tuple(range(10, 100))
    vllm.publish(0)
    vllm.finish([request(prompt)])
    weights = vllm.other_weights()
    vllm.publish(1, weights)
    (completion,) = vllm.finish([request(prompt)])
    np.testing.assert_allclose(
        completion.trajectory.log_probs,
        reference_log_probs(model, weights, prompt, completion, 1.0),
        atol=2e-5,
    )


def test_the_next_turn_of_an_episode_finds_its_earlier_tokens_in_the_cache(vllm: Harness) -> None:
    prompt = tuple(range(10, 100))
    vllm.publish(0)
    (turn,) = vllm.finish([request(prompt, max_tokens=60)])
    before = vllm.engine.stats()
    history = turn.trajectory + Trajectory.observed([40, 41])
    vllm.finish([request(prompt, max_tokens=100, partial=history)])
    after = vllm.engine.stats()
    num_cached = after.num_cached_tokens - before.num_cached_tokens
    num_given = len(prompt) + len(history)
    assert after.num_prompt_tokens - before.num_prompt_tokens == num_given
    assert num_given - 2 * vllm.kv_block_tokens <= num_cached < num_given, "all whole blocks"


def test_log_probabilities_stay_right_when_requests_are_preempted(vllm: Harness, model: Path) -> None:
    prompts = [tuple(range(first, first + 80)) for first in range(10, 18)]
    vllm.publish(0)
    before = vllm.engine.stats().num_preemptions
    ended = vllm.finish([request(prompt, max_tokens=100) for prompt in prompts])
    assert vllm.engine.stats().num_preemptions > before
    for prompt, completion in zip(prompts, ended, strict=True):
        expected = reference_log_probs(model, vllm.weights, prompt, completion, 1.0)
        np.testing.assert_allclose(completion.trajectory.log_probs, expected, atol=2e-5)


def test_prompts_that_exceed_the_tokens_of_one_step_are_sampled_like_any_other(vllm: Harness, model: Path) -> None:
    prompts = [tuple(range(first, first + 100)) for first in range(10, 15)]
    vllm.publish(0)
    assert sum(map(len, prompts)) > MAX_CONTEXT_TOKENS, "which is what a step computes at most"
    for prompt, completion in zip(prompts, vllm.finish([request(prompt) for prompt in prompts]), strict=True):
        expected = reference_log_probs(model, vllm.weights, prompt, completion, 1.0)
        np.testing.assert_allclose(completion.trajectory.log_probs, expected, atol=2e-5)


def test_the_continuation_of_a_partial_response_does_not_repeat_its_random_numbers(vllm: Harness) -> None:
    """With equal weights for every token, equal random numbers would sample equal tokens."""
    flat = {name: np.zeros_like(values) for name, values in vllm.weights.items()}
    vllm.publish(0, flat)
    first = vllm.abort_after(request(max_tokens=60, seed=3), num_tokens=12)
    (resumed,) = vllm.finish([request(max_tokens=60, seed=3, partial=first.trajectory)])
    assert resumed.trajectory.tokens.tolist()[12:24] != first.trajectory.tokens.tolist()


def test_a_response_ends_with_a_stop_token_of_the_job_unless_it_ignores_its_end(
    vllm: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    vllm.publish(0)
    (whole,) = vllm.finish([request(max_tokens=20)])
    tokens = whole.trajectory.tokens.tolist()
    place = next(place for place, token in enumerate(tokens) if place > 3 and token not in tokens[:place])
    monkeypatch.setattr(vllm.engine, "_stop_tokens", (tokens[place],))
    (stopped,) = vllm.finish([request(max_tokens=20)])
    assert stopped.trajectory.tokens.tolist() == tokens[: place + 1], "the token is part of the response"
    assert stopped.finish_reason is FinishReason.STOP
    (endless,) = vllm.finish([dataclasses.replace(request(max_tokens=20), ignores_end=True)])
    assert endless.num_tokens == 20


def test_weights_without_some_parameter_are_refused(vllm: Harness) -> None:
    lacking = {name: values for name, values in vllm.weights.items() if name != "model.norm.weight"}
    with pytest.raises(ValueError, match=r"lack 1 parameters of the model, first 'model\.norm\.weight'"):
        vllm.publish(1, lacking)
    with pytest.raises(ValueError, match=r"have 1 unknown parameters, first 'other'"):
        vllm.publish(1, {**vllm.weights, "other": lacking["model.embed_tokens.weight"]})
    assert vllm.engine.stats().policy_version == -1
    with pytest.raises(AssertionError, match="weights that were published"):
        vllm.engine.add([request()])


def test_two_ranks_sample_what_one_samples(vllm: Harness, model: Path) -> None:
    vllm.publish(0)
    (one,) = vllm.finish([request(temperature=0.0)])
    options = EngineSettings(enforce_eager=True, tensor_parallel_size=2)
    loaded: list[int] = []
    engine = create_engine(EngineSpec(options, MAX_CONTEXT_TOKENS), model, loaded.append)
    assert len(loaded) > 2, "ranks say how much they have read, in processes of their own"
    assert (loaded, loaded[-1]) == (sorted(set(loaded)), vllm.loaded_bytes[-1]), "the engine is as far as the slower"
    both = Harness(engine, load_file(model / "model.safetensors"), vllm.eos_id, vllm.kv_block_tokens, BUCKET_BYTES)
    both.publish(0)
    assert_ranks_are_forks_of_one_process(engine)
    (two,) = both.finish([request(temperature=0.0)])
    assert_ranks_wait_asleep(engine)
    assert two.trajectory.tokens.tolist() == one.trajectory.tokens.tolist()
    np.testing.assert_allclose(two.trajectory.log_probs, one.trajectory.log_probs, atol=2e-5)
    other = vllm.other_weights()
    assert both.publish_shared(1, other, num_ranks=2) == vllm.publish(1, other), (
        "each reads what a rank of its own wrote"
    )
    (one,), (two,) = (engine.finish([request(temperature=0.0)]) for engine in (vllm, both))
    assert two.trajectory.tokens.tolist() == one.trajectory.tokens.tolist()
    np.testing.assert_allclose(two.trajectory.log_probs, one.trajectory.log_probs, atol=2e-5)


def test_an_engine_says_why_a_rank_does_not_start(model: Path, tmp_path: Path) -> None:
    """vLLM tells the engine to look at the logs of its ranks."""
    shutil.copytree(model, tmp_path, dirs_exist_ok=True)
    file = tmp_path / "model.safetensors"
    save_file({**load_file(file), "other.weight": np.zeros(3, np.float32)}, file, metadata={"format": "pt"})
    options = EngineSettings(enforce_eager=True, tensor_parallel_size=2)
    with pytest.raises(EngineStartError, match=r"no module or parameter named 'other'"):
        create_engine(EngineSpec(options, MAX_CONTEXT_TOKENS), tmp_path)


@pytest.mark.parametrize(
    ("capability", "compiles", "chosen"),
    [((10, 0), False, "FLASH_ATTN"), ((10, 0), True, None), ((9, 0), False, None), (None, False, None)],
)
def test_attention_that_could_not_be_compiled_is_not_chosen(
    capability: tuple[int, int] | None, compiles: bool, chosen: str | None, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On Blackwell, vLLM's own choice is FlashInfer."""
    from vllm.platforms.interface import DeviceCapability

    from longshore_runtime.backends import vllm_arguments

    found = None if capability is None else DeviceCapability(*capability)
    monkeypatch.setattr(vllm_arguments, "current_platform", SimpleNamespace(get_device_capability=lambda: found))
    monkeypatch.setattr(vllm_arguments, "has_flashinfer", lambda: compiles)
    spec = EngineSpec(EngineSettings(), MAX_CONTEXT_TOKENS, accelerator=True)
    assert vllm_arguments.engine_arguments(model, spec).get("attention_backend") == chosen
    own = EngineSettings(extra_args={"attention_backend": "TRITON_ATTN"})
    spec = EngineSpec(own, MAX_CONTEXT_TOKENS, accelerator=True)
    assert vllm_arguments.engine_arguments(model, spec)["attention_backend"] == "TRITON_ATTN"


def test_kv_cache_on_the_cpu_that_the_job_leaves_open_holds_a_long_request(model: Path) -> None:
    from longshore_runtime.backends import vllm_arguments

    sizes = [
        vllm_arguments.engine_arguments(model, EngineSpec(EngineSettings(), context))["kv_cache_memory_bytes"]
        for context in (MAX_CONTEXT_TOKENS, 10_000_000)
    ]
    assert sizes[0] == CPU_KV_CACHE_BYTES < sizes[1]


def test_the_names_of_arguments_are_found_without_importing_vllm() -> None:
    from vllm import EngineArgs

    assert installed_arguments() == {field.name for field in dataclasses.fields(EngineArgs)}


def assert_ranks_are_forks_of_one_process(engine: Any) -> None:
    """A rank that is a new interpreter imports vLLM once more."""
    assert {rank.ppid() for rank in ranks_of(engine)} == {forks_parent()}


def assert_ranks_wait_asleep(engine: Any) -> None:
    """Directly after a step, when the next one may come at any time: one that looks for it in a loop fills a core."""
    waited_s = 0.5
    before_s = cpu_s(engine)
    time.sleep(waited_s)
    assert cpu_s(engine) - before_s < waited_s / 2


def cpu_s(engine: Any) -> float:
    """What the ranks of an engine have computed for."""
    return sum(sum(rank.cpu_times()[:2]) for rank in ranks_of(engine))


def ranks_of(engine: Any) -> list[psutil.Process]:
    """The processes of a tensor-parallel engine."""
    workers = engine._engine.engine_core.engine_core.model_executor.workers
    return [psutil.Process(worker.proc.pid) for worker in workers]


def forks_parent() -> int:
    """The process that multiprocessing's forks are forks of."""
    with multiprocessing.get_context("forkserver").Pool(1) as pool:
        return pool.apply(os.getppid)


def test_an_engine_finds_what_vllm_imports_and_overrides_at_its_start_done(model: Path) -> None:
    """It is a fork, as engines of pods are: half a second of CPU time for each of them, and some 600 modules."""
    with multiprocessing.get_context("forkserver").Pool(1) as pool:
        modules, kernels = pool.apply(done_by_a_start, (model, dict(os.environ)))
    assert len(modules) < 20, modules
    assert kernels == []


def done_by_a_start(model: Path, environment: dict[str, str]) -> tuple[list[str], list[str]]:
    """Modules of vLLM that an engine imports, and kernels that it looks for in all modules.

    The environment of the process that is forked may be that in which another test has started ranks.
    """
    from vllm.triton_utils import dispatcher

    kernels: list[str] = []
    register = dispatcher.register_kernels

    def noted(overrides: Mapping[str, Callable[..., Any]]) -> None:
        kernels.extend(overrides)
        register(overrides)

    dispatcher.register_kernels = noted
    os.environ.clear()
    os.environ.update(environment)
    before = set(sys.modules)
    create_engine(EngineSpec(EngineSettings(enforce_eager=True), MAX_CONTEXT_TOKENS), model)
    return sorted(name for name in sys.modules.keys() - before if name.startswith("vllm.")), kernels


def test_workers_take_the_pieces_that_tensor_parallel_ranks_hold(tmp_path: Path) -> None:
    """Also of biases, and with an embedding that every rank has all of; whole, and in slices."""
    model = build(tmp_path, Family("qwen2", tied=True), hidden_size=128, num_attention_heads=4, num_key_value_heads=2)
    engine = create_engine(EngineSpec(EngineSettings(enforce_eager=True, tensor_parallel_size=2), 128), model)
    weights = load_file(model / "model.safetensors")
    harness = Harness(engine, weights, eos_id=2, kv_block_tokens=32)
    other = {name: values[::-1].copy() if values.ndim == 1 else values.copy() for name, values in weights.items()}
    harness.publish(0, other)
    (before,) = harness.finish([request(temperature=0.0, max_tokens=8)])
    harness.publish(1)
    (expected,) = harness.finish([request(temperature=0.0, max_tokens=8)])
    assert before.trajectory.log_probs.tolist() != expected.trajectory.log_probs.tolist()
    for named, completion in ((other, before), (weights, expected)):
        reference = reference_log_probs(model, named, PROMPT, completion, 1.0)
        np.testing.assert_allclose(completion.trajectory.log_probs, reference, atol=2e-5)
    for version, bucket_bytes in ((2, BUCKET_BYTES), (4, SMALL_BUCKET_BYTES)):
        harness.publish(version, other)
        engine.begin_weights()
        senders = [WeightSender(pieces(model, weights, rank), CPU, 2 * bucket_bytes) for rank in range(2)]
        for parts in zip(*(iter(sender.fill, None) for sender in senders), strict=True):
            engine.load_bucket(SharedBucket(parts))
        engine.finish_weights()
        for sender in senders:
            sender.close()
        engine.serve(version + 1)
        (actual,) = harness.finish([request(temperature=0.0, max_tokens=8)])
        assert values(actual) == values(expected)


def pieces(model: Path, weights: Weights, rank: int) -> Iterator[Named]:
    """What one of two tensor-parallel ranks of Megatron holds of these weights."""
    architecture = read_architecture(AutoConfig.from_pretrained(model))
    for entry in stage_entries(architecture, 0, 1):
        whole = [torch.tensor(weights[name]) for name in entry.hf]
        own = entry.layout.pieces(entry.layout.shards(whole, 2)[rank], 2) or [(tensor, None) for tensor in whole]
        for name, (tensor, cut) in zip(entry.hf, own, strict=True):
            yield name, tensor, cut


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (EngineSettings(extra_args={"no_such": 1}), "vLLM has no argument no_such; remove it"),
        (EngineSettings(extra_args={"seed": 1}), "seed follows from other fields; remove it"),
        (EngineSettings(extra_args={"worker_extension_cls": "a.B"}), "worker_extension_cls follows from other fields"),
        (EngineSettings(extra_args={"pipeline_parallel_size": 2}), "would give an engine other GPUs than those of"),
        (EngineSettings(extra_args={"quantization_config": {}}), "engines could not take the trainer's"),
        (EngineSettings(extra_args={"override_generation_config": {"top_p": 0.5}}), "every request says how it is"),
        (EngineSettings(extra_args={"otlp_traces_endpoint": "http://x"}), "are sent with tracking.openTelemetry"),
        (
            EngineSettings(extra_args={"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}}),
            "with speculative_config vLLM samples wrong tokens on CPUs; remove it, or use GPUs",
        ),
        (EngineSettings(extra_args={"spec_method": "ngram"}), "with spec_method vLLM samples wrong tokens on CPUs"),
        (
            EngineSettings(extra_args={"enable_chunked_prefill": True}),
            "vLLM's engine would die on CPUs; remove it",
        ),
        (EngineSettings(kv_cache="1Ki", enforce_eager=True), "rollout.engine: vLLM does not start"),
    ],
)
def test_options_that_cannot_work_are_refused_with_a_sentence(
    model: Path, options: EngineSettings, sentence: str
) -> None:
    with pytest.raises(EngineStartError, match=sentence) as refusal:
        create_engine(EngineSpec(options, MAX_CONTEXT_TOKENS), model)
    assert "\n" not in str(refusal.value)


def test_an_engine_starts_without_another_process_that_imports_vllm(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a new pod, that is: there is no cache of an earlier start."""
    from vllm.model_executor.models import ModelRegistry
    from vllm.model_executor.models.registry import _VLLM_MODELS, _LazyRegisteredModel

    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path))
    (architecture,) = AutoConfig.from_pretrained(model).architectures
    module, name = _VLLM_MODELS[architecture]
    unknown = _LazyRegisteredModel(f"vllm.model_executor.models.{module}", name)
    monkeypatch.setitem(ModelRegistry.models, architecture, unknown)
    monkeypatch.setattr("vllm.model_executor.models.registry._run_in_subprocess", _no_process)
    create_engine(EngineSpec(EngineSettings(enforce_eager=True, kv_cache="4Mi"), MAX_CONTEXT_TOKENS), model)


def _no_process(*_: object, **__: object) -> None:
    raise AssertionError("vLLM started a process")


def test_a_step_is_under_way_only_while_requests_run(overlapping_vllm: Harness) -> None:
    """It would meet new weights, or memory that sleep gives away."""
    engine: Any = overlapping_vllm.engine
    core = engine._engine.engine_core.engine_core
    with steps_that_overlap():
        overlapping_vllm.publish(0)
        assert not core.batch_queue
        engine.add([request(max_tokens=20)])
        engine.step()
        assert core.batch_queue
        overlapping_vllm.finish_rest()
        assert not core.batch_queue
        overlapping_vllm.abort_after(request(max_tokens=20), 3)
        assert not core.batch_queue


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(
    ("sleep_level", "refusal"),
    [(1, "takes requests after its weights"), (2, "serves only weights that were published")],
)
@in_own_process
def test_a_sleeping_engine_frees_gpu_memory(model: Path, sleep_level: int, refusal: str) -> None:
    harness = harness_on_a_gpu(model, sleep_level, kv_cache="20Gi")
    harness.publish(0)
    (before,) = harness.finish([request(temperature=0.0)])
    free_awake, _ = torch.cuda.mem_get_info()
    harness.engine.sleep()
    assert torch.cuda.mem_get_info()[0] - free_awake > 19 << 30
    harness.engine.wake()
    with pytest.raises(AssertionError, match=refusal):
        harness.engine.add([request()])
    harness.publish(1)
    (after,) = harness.finish([request(temperature=0.0)])
    assert before.trajectory.tokens.tolist() == after.trajectory.tokens.tolist()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@in_own_process
def test_a_response_that_moves_on_a_gpu_goes_on_as_it_began(model: Path) -> None:
    """By recomputation of its tokens, on an engine that has slept meanwhile."""
    harness = harness_on_a_gpu(model, sleep_level=1)
    harness.publish(0)
    (whole,) = harness.finish([request(temperature=0.0)])
    begun = harness.abort_after(request(temperature=0.0), whole.num_tokens // 2)
    harness.engine.sleep()
    harness.engine.wake()
    harness.publish(1)
    (resumed,) = harness.finish([request(temperature=0.0, partial=begun.trajectory)])
    assert resumed.trajectory.tokens.tolist() == whole.trajectory.tokens.tolist()
    assert [run.policy_version for run in resumed.trajectory.runs] == [0, 1]
    np.testing.assert_allclose(
        resumed.trajectory.log_probs.tolist(), whole.trajectory.log_probs.tolist(), atol=BF16_LOG_PROB
    )


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@in_own_process
def test_tokens_sampled_several_at_a_time_on_a_gpu_have_the_models_log_probs(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By speculation with n-grams, at a temperature at which responses repeat themselves."""
    monkeypatch.setenv("TRITON_F32_DEFAULT", "ieee")
    speculation = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "prompt_lookup_max": 3}
    options: dict[str, Any] = {"dtype": EngineDtype.FLOAT32, "extra_args": {"speculative_config": speculation}}
    harness = harness_on_a_gpu(model, sleep_level=0, **options)
    harness.publish(0)
    completions = harness.finish([request(temperature=0.05, max_tokens=64, seed=seed) for seed in range(8)])
    for completion in completions:
        expected = reference_log_probs(model, harness.weights, PROMPT, completion, 0.05)
        np.testing.assert_allclose(completion.trajectory.log_probs, expected, atol=TF32_LOG_PROB / 0.05)
    longest = max(completion.num_tokens for completion in completions)
    assert harness.engine.stats().num_steps < longest, "every step gave one token: this shows nothing"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@in_own_process
def test_an_engine_in_fp8_quantises_each_time_that_weights_come(model: Path) -> None:
    harness = harness_on_a_gpu(model, sleep_level=1, quantization="FP8")
    for version, weights in enumerate((harness.weights, harness.other_weights())):
        harness.publish_shared(version, weights)
        parameters = harness.engine._engine.collective_rpc(dtypes_of_weights)[0]  # type: ignore[attr-defined]
        assert "float8_e4m3fn" in parameters
        (sampled,) = harness.finish([request(temperature=1.0)])
        expected = reference_log_probs(model, weights, PROMPT, sampled, 1.0)
        assert 0 < np.abs(sampled.trajectory.log_probs - np.array(expected)).mean() < 0.1


def dtypes_of_weights(worker: Any) -> list[str]:
    """Names of the types of the weights of an engine."""
    return sorted({str(one.dtype).removeprefix("torch.") for one in worker.model_runner.get_model().parameters()})


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@in_own_process
def test_experts_that_vllm_returns_on_a_gpu_are_those_that_the_model_chooses(tmp_path: Path) -> None:
    """Those of tokens that an older version sampled stay when a newer one goes on."""
    model = build(tmp_path, MIXTURES[0], head_dim=64, num_experts=8)
    harness = harness_on_a_gpu(model, sleep_level=0, returns_experts=True)
    harness.publish(0)
    begun = harness.abort_after(request(), 5)
    harness.publish(1)
    (resumed,) = harness.finish([request(partial=begun.trajectory)])
    found = resumed.trajectory
    assert found.experts is not None and found.prompt_experts is not None and begun.trajectory.experts is not None
    assert len(found.experts) == len(found) and len(found.prompt_experts) == len(PROMPT) - 1
    assert (found.experts[:5] == begun.trajectory.experts[:5]).all()
    plain: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    chosen: list[np.ndarray[Any, Any]] = []
    for _, module in expert_modules(plain):
        module.register_forward_pre_hook(lambda _, inputs: chosen.append(inputs[1].numpy()))
    with torch.no_grad():
        plain(torch.tensor([[*PROMPT, *found.tokens.tolist()]]))
    expected = np.sort(np.stack(chosen, axis=1)[:-1], axis=-1)
    returned = np.sort(np.concatenate((found.prompt_experts, found.experts)), axis=-1)
    assert (returned == expected).mean() > 0.9, "rounding changes few choices"


def harness_on_a_gpu(
    model: Path, sleep_level: int, kv_cache: str = "256Mi", returns_experts: bool = False, **other: Any
) -> Harness:
    """An engine that can sleep; a process can have one, and a GPU several: none measures what the others leave."""
    more = {"kv_cache": kv_cache, "gpu_memory_utilization": 0.1, **other}
    options = EngineSettings(enforce_eager=True, sleep_level=sleep_level, **more)
    spec = EngineSpec(options, MAX_CONTEXT_TOKENS, accelerator=True, returns_experts=returns_experts)
    engine = create_engine(spec, model)
    return Harness(engine, load_file(model / "model.safetensors"), eos_id=2, kv_block_tokens=16)
