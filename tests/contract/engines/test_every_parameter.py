"""Every published parameter is the one that an engine computes with: of every architecture, tied or not, by every path.

What is compared are log-probabilities. Checksums are taken of what arrives, and cannot see a layer that goes on
computing with a copy of older weights.
"""

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from longshore.api.rollout import EngineSettings
from longshore_runtime.backends.engine_protocol import Completion
from longshore_runtime.backends.engine_spec import EngineSpec
from longshore_runtime.backends.engines import create_engine
from longshore_runtime.backends.tiny_model import build_tokenizer
from longshore_runtime.backends.torch_trainer import TorchTrainer
from longshore_runtime.weights.slices import Weights
from tests.contract.engines.harness import BUCKET_BYTES, PROMPT, SMALL_BUCKET_BYTES, Harness, request
from tests.contract.engines.reference import Reference
from tests.contract.trainers.replicas import OPTIONS
from tests.contract.trainers.tiny_models import FAMILIES, GEMMA, MIXTURES, Family, build
from tests.own_process import in_own_process

HEADS = {"hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
"""vLLM's attention for the CPU has no smaller heads than these."""
TIED = Family("qwen2", tied=True)
EXPERTS = "vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method.UnquantizedFusedMoEMethod"
AGREEMENT = 1e-5
"""Largest difference of log-probabilities in fp32."""
AGREEMENT_ON_A_GPU = 2e-3
"""Largest difference on a GPU; 1.2e-3 were seen on an H100 while attention multiplied in TF32."""
NOTICED = 2.5 * AGREEMENT_ON_A_GPU
"""Smallest change by a single parameter with its old values that the comparison is sure to see."""

Publish = Callable[[Harness, int, Weights], str]
PATHS: dict[str, Publish] = {
    "object store": lambda harness, version, weights: harness.publish(version, weights),
    "slices": lambda harness, version, weights: harness.publish_shared(
        version, weights, bucket_bytes=SMALL_BUCKET_BYTES
    ),
    "shared memory": lambda harness, version, weights: harness.publish_shared(version, weights),
    "broadcast": lambda harness, version, weights: harness.publish_broadcast(version, weights),
}


class Served:
    """An engine, and transformers on the same model."""

    def __init__(self, model: Path, *, accelerator: bool = False, **more: Any) -> None:
        options = EngineSettings(max_num_seqs=2, extra_args={"num_gpu_blocks_override": 16}, **more)
        torch.set_num_threads(1)
        self.model = model
        self.reference = Reference(model)
        if not self.reference.has_their_names:
            _forget_groups_of_dense_models()
        engine = create_engine(EngineSpec(options, max_context_tokens=128, accelerator=accelerator), model)
        self.harness = Harness(engine, self.reference.weights, eos_id=2, kv_block_tokens=32, bucket_bytes=BUCKET_BYTES)
        self.version = 0
        self._num_tokens = 12 if self.reference.has_their_names else 48  # Every expert is to have a token.

    def publish(self, path: str, weights: Weights) -> None:
        """As the next policy version."""
        self.version += 1
        PATHS[path](self.harness, self.version, weights)

    def sample(self) -> Completion:
        """A response, behind a prompt that may be cached."""
        (completion,) = self.harness.finish([request(max_tokens=self._num_tokens)])
        return completion

    def require_agreement(self, weights: Weights, atol: float = AGREEMENT) -> None:
        """The engine samples from these weights, and from no others."""
        sampled = self.sample()
        expected = self.reference.log_probs(weights, PROMPT, sampled)
        np.testing.assert_allclose(sampled.trajectory.log_probs.tolist(), expected, atol=atol, rtol=0)


def _forget_groups_of_dense_models() -> None:
    """All engines of a process share vLLM's groups, and those that dense ones make have no group of experts."""
    if (parallel_state := sys.modules.get("vllm.distributed.parallel_state")) is not None:
        parallel_state.destroy_model_parallel()


EVERY = [Family("llama", tied=False), TIED, GEMMA[0], MIXTURES[0], None]
"""Models of every run; those of the other families are tried before a release."""


@pytest.fixture(
    scope="module",
    params=[
        *EVERY,
        *(pytest.param(one, marks=pytest.mark.soak) for one in (*FAMILIES, *GEMMA, *MIXTURES) if one not in EVERY),
    ],
    ids=lambda family: str(family or "tied-with-a-copy"),
)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Served:
    """One engine for all checks on a model."""
    directory = tmp_path_factory.mktemp("model")
    if request.param is None:
        # Tools that fine-tune often write the output layer of a tied model, too.
        build_model(directory, TIED)
        add_head(directory, lambda embedding: embedding)
    else:
        build_model(directory, request.param)
    served = Served(directory, enforce_eager=True)
    served.publish("object store", served.harness.weights)
    return served


def build_model(directory: Path, family: Family) -> Path:
    """With a tokenizer, without which vLLM starts no Llama."""
    build_tokenizer().save_pretrained(directory)
    return build(directory, family, **HEADS)


def add_head(model: Path, values: Callable[[Any], Any]) -> None:
    """Write an output layer to the files of a model with tied embeddings."""
    weights = load_file(model / "model.safetensors")
    weights["lm_head.weight"] = values(weights["model.embed_tokens.weight"])
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})


def changed(weights: Weights, seed: int) -> Weights:
    """Other values of every parameter."""
    random = np.random.default_rng(seed)
    return {
        name: (values + 0.05 * random.standard_normal(values.shape)).astype(np.float32)
        for name, values in weights.items()
    }


@pytest.mark.parametrize("path", PATHS)
def test_an_engine_computes_with_every_parameter_that_was_published(served: Served, path: str) -> None:
    old = served.harness.weights
    served.publish(path, old)
    served.require_agreement(old)
    new = changed(old, seed=1)
    served.publish(path, new)
    served.require_agreement(new)


@pytest.mark.soak  # transformers computes once for each parameter.
def test_a_single_parameter_with_old_values_would_be_noticed(served: Served) -> None:
    old = served.harness.weights
    new = changed(old, seed=1)
    served.publish("object store", new)
    sampled = served.sample()
    for name in new:
        stale = served.reference.log_probs({**new, name: old[name]}, PROMPT, sampled)
        assert np.abs(np.subtract(stale, sampled.trajectory.log_probs)).max() > NOTICED, name


def test_new_weights_are_served_after_sleep(served: Served) -> None:
    before, after = changed(served.harness.weights, seed=2), changed(served.harness.weights, seed=3)
    served.publish("shared memory", before)
    served.harness.engine.sleep()
    served.harness.engine.wake()
    served.require_agreement(before)
    served.harness.engine.sleep()
    served.harness.engine.wake()
    served.publish("shared memory", after)
    served.require_agreement(after)


def test_weights_of_a_restored_checkpoint_are_served(served: Served, tmp_path: Path) -> None:
    """Transformers opens the checkpoint by itself."""
    trained = TorchTrainer(served.model, OPTIONS)
    with torch.no_grad():
        for parameter in trained._parameters:
            parameter.add_(0.05 * torch.randn_like(parameter))
    trained.begin_save(tmp_path)()
    restored = TorchTrainer(served.model, OPTIONS)
    restored.load(tmp_path)
    served.publish("object store", dict(restored.weights()))
    sampled = served.sample()
    expected = Reference(tmp_path).log_probs({}, PROMPT, sampled)
    np.testing.assert_allclose(sampled.trajectory.log_probs.tolist(), expected, atol=AGREEMENT, rtol=0)


def test_weights_after_those_that_broke_off_are_served(served: Served) -> None:
    old, new = served.harness.weights, changed(served.harness.weights, seed=4)
    name = next(iter(new))
    served.harness.engine.begin_weights()
    served.harness.engine.load_bucket({name: new[name]})
    with pytest.raises(ValueError, match="lack"):
        served.harness.engine.finish_weights()
    served.publish("object store", old)
    served.require_agreement(old)


def test_a_layer_that_keeps_a_packed_copy_of_old_weights_is_noticed(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def keep(layer: torch.nn.Module, remove_weight: bool) -> None:
        if remove_weight:
            layer.weight = torch.nn.Parameter(torch.empty(0), requires_grad=False)

    weights = served.harness.weights
    kind = json.loads((served.model / "config.json").read_text())["model_type"]
    packed = {"qwen3_moe": 8, "mixtral": 8, "glm4_moe": 11}.get(kind, 10)
    with monkeypatch.context() as patch:
        patch.setattr("vllm.model_executor.layers.utils.dispatch_cpu_unquantized_gemm", keep)
        with pytest.raises(
            ValueError, match=rf"^.*\b{packed} layers of vLLM kept old weights, among them lm_head, model\.embed"
        ):
            served.publish("object store", weights)
    assert served.harness.engine.stats().policy_version == -1
    served.publish("object store", weights)
    served.require_agreement(weights)


def test_experts_that_keep_packed_copies_of_old_weights_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = Served(build_model(tmp_path, MIXTURES[0]), enforce_eager=True)
    weights = served.harness.weights
    served.publish("object store", weights)
    with monkeypatch.context() as patch:
        patch.setattr(f"{EXPERTS}.process_weights_after_loading", lambda self, layer: None)
        with pytest.raises(ValueError, match=r"2 layers of vLLM kept old weights, among them .*\.0\.mlp\.experts"):
            served.publish("object store", weights)
    served.publish("object store", weights)
    served.require_agreement(weights)


def test_an_output_layer_that_no_weights_come_for_is_noticed(tmp_path: Path) -> None:
    """The configuration ties it to the embedding, the files hold another one, and engines take that."""
    model = build_model(tmp_path, TIED)
    add_head(model, lambda embedding: 2 * embedding)
    served = Served(model, enforce_eager=True)
    weights = dict(served.harness.weights)
    del weights["lm_head.weight"]
    with pytest.raises(ValueError, match=r"1 layers of vLLM kept old weights, among them lm_head"):
        served.publish("object store", weights)


@contextlib.contextmanager
def compilation_on() -> Iterator[None]:
    """Engines of other tests have turned it off in this process."""
    import torch._dynamo.config as dynamo

    with pytest.MonkeyPatch.context() as patch, dynamo.patch(disable=False):  # type: ignore[attr-defined]
        patch.delenv("TORCHDYNAMO_DISABLE", raising=False)
        yield


@pytest.mark.soak
def test_a_compiled_engine_computes_with_every_parameter_that_was_published(tmp_path: Path) -> None:
    """Compiled code keeps no copies either."""
    with compilation_on():
        served = Served(build_model(tmp_path, TIED), enforce_eager=False)
        for seed in (1, 2):
            weights = changed(served.harness.weights, seed)
            served.publish("object store", weights)
            served.require_agreement(weights)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("sleep_level", [0, 1, 2])
@pytest.mark.parametrize("family", FAMILIES, ids=str)
@in_own_process
def test_captured_graphs_compute_with_every_parameter_that_was_published(
    family: Family, sleep_level: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A CUDA graph has the addresses of the weights that it was captured with; sleep gives that memory away."""
    monkeypatch.setenv("TRITON_F32_DEFAULT", "ieee")
    model = build_model(tmp_path, family)
    memory = {"kv_cache": "64Mi", "gpu_memory_utilization": 0.1}
    options = {"enforce_eager": False, "dtype": "float32", "sleep_level": sleep_level, **memory}
    with compilation_on():
        served = Served(model, accelerator=True, **options)
        for seed in (1, 2):
            weights = changed(served.harness.weights, seed)
            served.publish("object store", weights)
            served.require_agreement(weights, AGREEMENT_ON_A_GPU)
            if sleep_level:
                served.harness.engine.sleep()
                served.harness.engine.wake()
