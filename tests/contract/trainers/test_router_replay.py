"""Tokens that pass through the experts of the engine, against a plain computation of transformers."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from longshore.api.training import Recompute
from longshore_runtime.backends.experts import expert_modules
from longshore_runtime.backends.parallel_sizes import ParallelSizes
from longshore_runtime.backends.torch_trainer import TorchTrainer
from longshore_runtime.backends.trainer_protocol import Sample, TrainerOptions
from longshore_runtime.backends.world import World
from longshore_runtime.trajectories.trajectory import Trajectory
from tests.contract.trainers.plans import (
    Named,
    apart,
    double_models,
    double_precision,
    sample_loss,
    token_log_probs,
    torch_gradients,
)
from tests.contract.trainers.ranks import kept_ranks
from tests.contract.trainers.replicas import LORA, OPTIONS, make_samples, own_part
from tests.contract.trainers.tiny_models import MIXTURES, Family, build

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")

REPLAYED = replace(OPTIONS, router_replay=True)
NUM_LAYERS, NUM_EXPERTS, NUM_CHOSEN = 2, 3, 2
ALONE = 100.0
"""Denominator of the gradients that are compared."""


def with_experts(sample: Sample, seed: int) -> Sample:
    """A sample whose engine chose at random."""
    rng = np.random.default_rng(seed)
    scores = rng.random((sample.num_tokens - 1, NUM_LAYERS, NUM_EXPERTS))
    rows = np.argsort(scores)[..., :NUM_CHOSEN].astype(np.uint8)
    return replace(sample, trajectory=sample.trajectory.with_experts(rows, len(sample.prompt_tokens)))


SAMPLES = [with_experts(sample, seed) for seed, sample in enumerate(make_samples())]


@pytest.fixture(scope="module", params=MIXTURES, ids=str)
def any_model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    family: Family = request.param
    return build(tmp_path_factory.mktemp(str(family)), family)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("mixture"), MIXTURES[0])


def given(gate: Any, hidden: Tensor, experts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What a router returns for experts that it did not choose, by the formulas of the models' papers."""
    logits = hidden.reshape(-1, hidden.shape[-1]) @ gate.weight.T
    is_sigmoid = hasattr(gate, "routed_scaling_factor")
    weights = (logits.sigmoid() if is_sigmoid else logits.softmax(-1)).gather(1, experts)
    if is_sigmoid or getattr(gate, "norm_topk_prob", True):
        weights = weights / weights.sum(-1, keepdim=True)
    return logits, weights * getattr(gate, "routed_scaling_factor", 1.0), experts


@contextmanager
def choosing(module: Any, sample: Sample) -> Iterator[None]:
    """Have all routers of a model choose what the engine chose; for the last token, which nothing follows, any."""
    trajectory = sample.trajectory
    assert trajectory.experts is not None and trajectory.prompt_experts is not None
    known = np.concatenate((trajectory.prompt_experts, trajectory.experts))
    rows = torch.from_numpy(np.concatenate((known, known[-1:])).astype(np.int64))
    gates = {name: one for name, one in module.named_modules() if name.endswith((".gate", ".router"))}
    for name, gate in gates.items():
        number = int(name.split(".layers.")[1].split(".")[0])
        gate.forward = lambda hidden, gate=gate, number=number: given(gate, hidden, rows[:, number])
    try:
        yield
    finally:
        for gate in gates.values():
            del gate.forward


def plain_gradients(model: Path, options: TrainerOptions) -> Named:
    """Gradients of transformers with one expert after the other; the reference chooses its own."""
    policy, initial = (
        AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, experts_implementation="eager").double()
        for _ in range(2)
    )
    with double_precision():
        for sample in SAMPLES:
            with choosing(policy, sample):
                torch.autograd.backward(sample_loss(policy, initial, sample, options) / ALONE)
    return {name: parameter.grad.numpy() for name, parameter in policy.named_parameters()}


def test_gradients_are_those_of_a_plain_computation_with_these_experts(any_model: Path) -> None:
    with double_models():
        trainer = TorchTrainer(any_model, REPLAYED)
    with double_precision():
        trainer.accumulate(SAMPLES)
        found = torch_gradients(trainer, ALONE)
        trainer.discard()
        trainer.accumulate([replace(one, trajectory=without_experts(one.trajectory)) for one in SAMPLES])
        own = torch_gradients(trainer, ALONE)
    expected = plain_gradients(any_model, OPTIONS)
    assert apart(found, expected) < 1e-10
    assert apart(own, expected) > 0.1, "routers would have chosen others"


def without_experts(trajectory: Trajectory) -> Trajectory:
    return Trajectory(trajectory.tokens, trajectory.log_probs, trajectory.runs)


def gradients(world: World, model: Path, options: TrainerOptions) -> Named:
    """What a replica of all ranks accumulates."""
    sizes = ParallelSizes(fsdp=world.size)
    trainer = TorchTrainer(model, options, world, sizes)
    trainer.accumulate(own_part(SAMPLES, world, sizes))
    trainer._accumulation.collect()
    named = trainer._model.module.named_parameters()
    return {name: trainer._replica.whole(one.grad).numpy() for name, one in named if one.requires_grad}


@pytest.mark.parametrize(
    ("options", "num_ranks"),
    [
        (REPLAYED, 2),
        (replace(REPLAYED, recompute=Recompute.FULL), 1),
        (replace(REPLAYED, recompute=Recompute.SELECTIVE), 1),
        (replace(REPLAYED, max_tokens_per_micro_batch=1), 1),
    ],
    ids=["shards", "full", "selective", "small micro-batches"],
)
def test_experts_are_those_of_each_token_however_passes_are_made(
    options: TrainerOptions, num_ranks: int, model: Path
) -> None:
    (expected,) = kept_ranks(1).run(gradients, model, REPLAYED)
    found, *_ = kept_ranks(num_ranks).run(gradients, model, options)
    assert apart(found, expected) < 2e-5


def test_a_model_without_its_adapter_chooses_experts_itself(model: Path) -> None:
    """As the reference: its divergence from a policy that has not moved is that of its own choice."""
    trainer = TorchTrainer(model, replace(REPLAYED, lora=LORA))
    assert trainer.accumulate(SAMPLES).kl > 0.0
    chosen = [replace(one, trajectory=without_experts(one.trajectory)) for one in SAMPLES]
    assert trainer.accumulate(chosen).kl == 0.0


def sampled_by(engine: Any, sample: Sample) -> Sample:
    """The sample with log-probabilities and experts of another model."""
    seen: dict[int, Tensor] = {}
    for name, module in expert_modules(engine):
        number = int(name.split(".layers.")[1].split(".")[0])
        module.register_forward_pre_hook(lambda _, inputs, number=number: seen.update({number: inputs[1]}))
    with torch.no_grad():
        log_probs = token_log_probs(engine, sample, OPTIONS.temperature).numpy()
    rows = torch.stack([seen[number] for number in range(NUM_LAYERS)], dim=1)[:-1].numpy().astype(np.uint8)
    trajectory = Trajectory.sampled(0, sample.trajectory.tokens, log_probs)
    return replace(sample, trajectory=trajectory.with_experts(rows, len(sample.prompt_tokens)))


def test_replay_lowers_the_mismatch_of_routers_that_differ_by_noise(tmp_path: Path) -> None:
    sizes = {"num_experts": 32, "num_experts_per_tok": 4}
    model = build(tmp_path, MIXTURES[0], **sizes)
    engine: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in engine.named_parameters():
            if name.endswith("mlp.gate.weight"):
                parameter.add_(0.005 * torch.randn_like(parameter))
    samples = [sampled_by(engine, sample) for sample in make_samples()]
    found = [TorchTrainer(model, options).accumulate(samples).mean_mismatch for options in (OPTIONS, REPLAYED)]
    assert all(one is not None for one in found)
    without, replayed = map(float, found)  # type: ignore[arg-type]
    print(f"mismatch {without:.2e} without replay, {replayed:.2e} with")
    assert replayed < 0.5 * without


def test_a_model_without_experts_is_refused(tmp_path: Path) -> None:
    model = build(tmp_path, Family("qwen3", tied=True))
    with pytest.raises(ValueError, match=r"no experts .* remove trainer\.routerReplay"):
        TorchTrainer(model, REPLAYED)


def test_experts_of_another_model_are_refused(model: Path) -> None:
    sample = SAMPLES[0]
    experts = sample.trajectory.experts
    assert experts is not None
    other = replace(sample, trajectory=replace(sample.trajectory, experts=experts + np.uint8(NUM_EXPERTS)))
    with pytest.raises(ValueError, match="engines return experts of another model"):
        TorchTrainer(model, REPLAYED).accumulate([other])
