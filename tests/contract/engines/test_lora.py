"""Engines that serve an adapter compute with the one that was published last, and prove that they do."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from longshore.api.rollout import EngineSettings
from longshore.policy.draws import Draw
from longshore_runtime.backends.engine_protocol import Completion
from longshore_runtime.backends.engine_spec import EngineSpec
from longshore_runtime.backends.engines import create_engine
from longshore_runtime.backends.torch_trainer import TorchTrainer
from longshore_runtime.backends.trainer_protocol import Sample
from longshore_runtime.trajectories.trajectory import LogProbs
from longshore_runtime.weights.buckets import checksums, combined_checksum
from longshore_runtime.weights.slices import Weights
from tests.contract.engines.harness import PROMPT, Harness, request, values
from tests.contract.engines.test_every_parameter import AGREEMENT, PATHS, build_model
from tests.contract.trainers.replicas import LORA, OPTIONS
from tests.contract.trainers.tiny_models import Family

LAYER = "base_model.model.model.layers.0.self_attn.q_proj"
LONG_PROMPT = tuple(range(10, 100))


class Served:
    """An engine, and the trainer whose adapters it serves."""

    def __init__(self, model: Path, tp_size: int = 1) -> None:
        torch.set_num_threads(1)
        options = EngineSettings(
            max_num_seqs=2, enforce_eager=True, tensor_parallel_size=tp_size, extra_args={"num_gpu_blocks_override": 16}
        )
        engine = create_engine(EngineSpec(options, max_context_tokens=128, lora=LORA), model)
        self.trainer = TorchTrainer(model, replace(OPTIONS, temperature=1.0, lora=LORA))
        self.harness = Harness(engine, self.weights, eos_id=2, kv_block_tokens=32, bucket_bytes=2000)

    @property
    def weights(self) -> Weights:
        return dict(self.trainer.weights())

    def train(self, seed: int) -> Weights:
        """Other matrices, all of which matter."""
        torch.manual_seed(seed)
        with torch.no_grad():
            for _, parameter in self.trainer._model.stored.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        return self.weights

    def sample(self) -> Completion:
        (completion,) = self.harness.finish([request(max_tokens=12)])
        return completion

    def log_probs(self, completion: Completion) -> LogProbs:
        """Those of the trainer."""
        sample = Sample(Draw(0, 0), 0, np.array(PROMPT), completion.trajectory, 1.0, 1.0)
        return self.trainer.log_probs([sample])[0]

    def require_agreement(self) -> None:
        sampled = self.sample()
        np.testing.assert_allclose(sampled.trajectory.log_probs, self.log_probs(sampled), atol=AGREEMENT, rtol=0)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    return Served(build_model(tmp_path_factory.mktemp("model"), Family("qwen3", tied=True)))


@pytest.mark.parametrize("path", PATHS)
def test_engine_samples_with_the_adapter_of_the_trainer(served: Served, path: str) -> None:
    PATHS[path](served.harness, 1, served.train(seed=1))
    served.require_agreement()
    PATHS[path](served.harness, 2, served.train(seed=2))
    served.require_agreement()
    sampled = served.sample()
    assert served.trainer._model.adapter is not None
    with served.trainer._model.adapter.off():
        base = served.log_probs(sampled)
    assert np.abs(base - sampled.trajectory.log_probs).max() > 1000 * AGREEMENT, "the adapter matters"


def test_answer_is_the_checksum_of_the_adapter(served: Served) -> None:
    assert served.harness.publish(3, served.weights) == combined_checksum([checksums(served.weights)])


def test_cached_prompts_of_an_older_adapter_are_not_used(served: Served) -> None:
    old = served.train(seed=3)
    served.harness.publish(4, old)
    (first,) = served.harness.finish([request(LONG_PROMPT, temperature=0.0)])
    served.harness.publish(5, served.train(seed=4))
    (other,) = served.harness.finish([request(LONG_PROMPT, temperature=0.0)])
    assert values(other) != values(first)
    served.harness.publish(6, old)
    (again,) = served.harness.finish([request(LONG_PROMPT, temperature=0.0)])
    assert values(again) == values(first)


@pytest.mark.parametrize(
    ("name", "missing"),
    [("base_model.model.model.layers.9.self_attn.q_proj", ()), (LAYER, (f"{LAYER}.lora_B.weight",))],
    ids=["no such layer", "half of a layer"],
)
def test_adapter_that_is_not_bound_as_a_whole_is_refused(served: Served, name: str, missing: tuple[str, ...]) -> None:
    weights = {one.replace(LAYER, name): matrix for one, matrix in served.weights.items() if one not in missing}
    with pytest.raises(ValueError, match="1 layers of vLLM do not compute with the adapter, among them model"):
        served.harness.publish(7, weights)
    assert served.harness.engine.stats().policy_version == -1
    served.harness.publish(8, served.weights)
    served.require_agreement()


def test_adapter_survives_sleep(served: Served) -> None:
    served.harness.publish(9, served.train(seed=5))
    served.harness.engine.sleep()
    served.harness.engine.wake()
    served.require_agreement()


@pytest.mark.soak
@pytest.mark.parametrize("family", [Family("gemma3", tied=True), Family("qwen2", tied=False)], ids=str)
def test_other_families(family: Family, tmp_path: Path) -> None:
    served = Served(build_model(tmp_path, family))
    served.harness.publish(1, served.train(seed=1))
    served.require_agreement()


@pytest.mark.soak
def test_tensor_parallel_ranks_hold_their_parts(tmp_path: Path) -> None:
    served = Served(build_model(tmp_path, Family("qwen3", tied=False)), tp_size=2)
    served.harness.publish(1, served.train(seed=1))
    served.require_agreement()
