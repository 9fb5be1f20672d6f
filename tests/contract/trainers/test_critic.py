"""A critic against verl's formulas, and against plain transformers in double precision."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from longshore.api.objectives.ppo import Ppo
from longshore.api.objectives.tppo import Tppo
from longshore.api.training import TrainerDtype
from longshore.policy.draws import Draw
from longshore_runtime.backends.critic import TrainerWithCritic, value_losses
from longshore_runtime.backends.parallel_sizes import ParallelSizes
from longshore_runtime.backends.sums import CriticSums, GradientSums
from longshore_runtime.backends.torch_trainer import TorchTrainer
from longshore_runtime.backends.trainer_protocol import Sample, TrainerOptions
from longshore_runtime.backends.value_model import HEAD
from longshore_runtime.backends.world import World
from longshore_runtime.errors import UserError
from longshore_runtime.trainer.advantage_estimation import with_estimates
from longshore_runtime.trainer.group import step_denominator
from longshore_runtime.trajectories.trajectory import EMPTY, Run, Trajectory
from tests.contract.trainers.plans import apart, double_models, double_precision
from tests.contract.trainers.ranks import kept_ranks
from tests.contract.trainers.replicas import OPTIONS, make_samples, own_part, with_masks
from tests.contract.trainers.tiny_models import Family, build

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")

VERL: Mapping[str, Any] = json.loads((Path(__file__).parent / "verl_ppo.json").read_text())
"""Batch of four responses, and what verl 0.9.1 computes of it with several gammas and lambdas.

Its `compute_gae_advantage_return` and `compute_value_loss` were called in double precision.
"""
ONE, HALVES = ParallelSizes(), ParallelSizes(fsdp=2)
OBJECTIVE = Ppo(value_learning_rate=0.005, value_clip=0.2)
CRITIC = replace(OPTIONS, objective=OBJECTIVE, adam_epsilon=1e-6, max_grad_norm=0.5, max_tokens_per_micro_batch=100)


def response(index: int, mask: Sequence[float], reward: float) -> Sample:
    """A response with some tokens of an environment."""
    tokens = Trajectory(np.full(len(mask), 5), np.zeros(len(mask)), tuple(Run(0 if one else None, 1) for one in mask))
    return Sample(Draw(0, 0), index, (1,), tokens, reward, reward, loss_mask=mask)


@pytest.mark.parametrize("case", VERL["cases"], ids=lambda case: f"{case['gamma']}, {case['lam']}")
def test_advantages_and_value_losses_are_those_of_verl(case: Mapping[str, Any]) -> None:
    samples = [response(*one) for one in zip(range(4), VERL["mask"], VERL["rewards"], strict=True)]
    values = {sample.key: np.array(own) for sample, own in zip(samples, VERL["values"], strict=True)}
    found = with_estimates(samples, values, Ppo(gamma=case["gamma"], gae_lambda=case["lam"]))

    def in_loss(parts: Sequence[Any]) -> Tensor:
        return torch.from_numpy(
            np.concatenate([np.array(part)[one.in_loss] for part, one in zip(parts, samples, strict=True)])
        )

    assert torch.allclose(in_loss([one.advantage for one in found]), in_loss(case["whitened"]).float(), atol=1e-6)
    returns = in_loss([one.returns for one in found])
    assert torch.allclose(returns, in_loss(case["returns"]).float(), atol=1e-6)
    losses, clipped = value_losses(in_loss(VERL["new"]), in_loss(VERL["values"]), in_loss(case["returns"]), clip=0.5)
    assert losses.mean().item() == pytest.approx(case["loss"], abs=1e-8)
    assert clipped.double().mean().item() == pytest.approx(case["clip_fraction"], abs=1e-7)


def test_advantages_without_whitening_are_rewards_minus_values() -> None:
    sample = response(0, [1, 1, 1], 2.0)
    values = np.array([0.5, -1.0, 3.0])
    (one,) = with_estimates([replace(sample, penalty=-0.5)], {sample.key: values}, Ppo(whiten=False))
    assert np.array_equal(one.token_advantages, [1.0, 2.5, -1.5])
    assert one.values is not None
    assert one.returns is not None
    assert np.array_equal(one.values, values)
    assert np.array_equal(one.returns, [1.5, 1.5, 1.5])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with tied embeddings, whose critic has an embedding and no output layer."""
    return build(tmp_path_factory.mktemp("tied"), Family("qwen2", tied=True))


def batch(seed: int) -> list[Sample]:
    """Samples with masks, and with values and returns some of which lie beyond the clip."""
    rng = np.random.default_rng(seed + 100)
    return [
        replace(
            sample,
            advantage=rng.normal(size=sample.num_response_tokens).astype(np.float32),
            values=rng.normal(0.0, 0.3, size=sample.num_response_tokens),
            returns=rng.normal(0.5, 1.0, size=sample.num_response_tokens),
        )
        for sample in with_masks(make_samples(seed=seed))
    ]


BATCHES = [batch(seed) for seed in range(4)]


@dataclass(frozen=True)
class Trained:
    """Weights after all steps by name, norms of the critic's gradients, and the sums of the last step."""

    critic: Mapping[str, Any]
    policy: Mapping[str, Any]
    norms: tuple[float, ...]
    sums: CriticSums


def plain(model: Path) -> Trained:
    """Transformers in double precision, one response at a time."""
    with double_precision():
        backbone = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).double().base_model
        head = torch.nn.Linear(backbone.config.hidden_size, 1, bias=False)
        torch.nn.init.zeros_(head.weight)
        parameters = [*backbone.parameters(), head.weight]
        optimizer = torch.optim.AdamW(
            parameters, lr=OBJECTIVE.value_learning_rate, betas=(0.9, 0.95), eps=1e-6, weight_decay=0.01
        )
        norms, losses = [], list[Tensor]()
        for samples in BATCHES:
            losses = [
                _loss(backbone, head, sample, place) for sample in samples for place in range(len(sample.trajectory))
            ]
            optimizer.zero_grad()
            torch.autograd.backward(torch.stack(losses).mean())
            norms.append(float(torch.nn.utils.clip_grad_norm_(parameters, CRITIC.max_grad_norm)))
            optimizer.step()
        names = {f"model.{name}": values.detach().numpy() for name, values in backbone.named_parameters()}
        weights = names | {"score.weight": head.weight.detach().numpy()}
        return Trained(weights, {}, tuple(norms), CriticSums(len(losses), float(torch.stack(losses).sum())))


def _loss(backbone: Any, head: Any, sample: Sample, place: int) -> Tensor:
    first, assert_values = len(sample.prompt_tokens), (sample.values, sample.returns)
    old, wanted = (float(values[place]) for values in assert_values if values is not None)
    tokens = torch.tensor([[*sample.prompt_tokens, *sample.trajectory.tokens]])[:, : first + place]
    value = head(backbone(tokens).last_hidden_state[0, -1])[0]
    kept = min(max(float(value), old - 0.2), old + 0.2)
    inside = (value - wanted) ** 2
    return inside / 2 if inside >= (kept - wanted) ** 2 else torch.tensor((kept - wanted) ** 2 / 2)


def train(
    world: World, model: Path, sizes: ParallelSizes, options: TrainerOptions = CRITIC, naps: bool = False
) -> Trained:
    """What one replica makes of its part of every batch, each in two calls."""
    torch.set_num_threads(1)
    with double_models():
        trainer = TrainerWithCritic(model, model, options, world, sizes)
    num_replicas, norms, sums = world.size // sizes.fsdp, [], GradientSums()
    with double_precision():
        for samples in BATCHES:
            own = samples[sizes.replica(world.rank) :: num_replicas]
            sums = GradientSums()
            for part in (own[:3], own[3:]):
                sums += trainer.accumulate(own_part(part, world, sizes))
                if naps:
                    trainer.sleep()
            report = trainer.update(step_denominator(samples, options))
            assert report.critic is not None
            norms.append(report.critic.grad_norm)
        weights = ({name: values.numpy() for name, values, _ in one.tensors()} for one in (trainer._critic, trainer))
        return Trained(*weights, tuple(norms), sums.critic)


@pytest.fixture(scope="module")
def expected(model: Path) -> Trained:
    return plain(model)


@pytest.mark.parametrize(
    ("num_ranks", "sizes", "options"),
    [
        pytest.param(1, ONE, CRITIC, id="alone"),
        pytest.param(1, ONE, replace(CRITIC, max_tokens_per_micro_batch=1), id="one by one"),
        pytest.param(2, ONE, CRITIC, id="two replicas"),
        pytest.param(2, HALVES, CRITIC, id="two shards"),
        pytest.param(4, HALVES, CRITIC, id="two replicas of two shards"),
    ],
)
def test_a_critic_learns_as_plain_transformers_in_double_precision(
    num_ranks: int, sizes: ParallelSizes, options: TrainerOptions, model: Path, expected: Trained
) -> None:
    ranks = kept_ranks(num_ranks).run(train, model, sizes, options, True) if num_ranks > 1 else None
    for found in ranks or [train(World(), model, sizes, options)]:
        assert found.norms == pytest.approx(expected.norms, rel=1e-9)
        assert apart(found.critic, expected.critic) < 1e-8
        if num_ranks == sizes.fsdp:
            assert found.sums.loss == pytest.approx(expected.sums.loss, rel=1e-9)
            assert 0 < found.sums.clipped < found.sums.num_tokens == expected.sums.num_tokens


def test_a_critic_changes_nothing_for_the_policy(model: Path, expected: Trained) -> None:
    with double_models():
        alone = TorchTrainer(model, CRITIC)
    with double_precision():
        for samples in BATCHES:
            alone.accumulate(samples)
            alone.update(step_denominator(samples, CRITIC))
        weights = {name: values.numpy() for name, values, _ in alone.tensors()}
    assert apart(train(World(), model, ONE).policy, weights) < 1e-12


def test_a_critic_begins_with_values_of_zero_and_may_be_another_model(model: Path, tmp_path: Path) -> None:
    other = build(tmp_path / "other", Family("llama", tied=False))
    trainer = TrainerWithCritic(model, other, CRITIC)
    assert all(not values.any() for values in trainer.values(BATCHES[0]).values())
    trainer.accumulate(BATCHES[0])
    assert trainer.compare(BATCHES[0], 100.0) < 1e-4
    trainer.update(100.0)
    assert all(values.any() for values in trainer.values(BATCHES[0]).values())
    assert "lm_head.weight" not in dict(trainer._critic.weights())
    TorchTrainer(model, CRITIC).begin_save(tmp_path / "without")()
    trainer.load(tmp_path / "without")
    assert trainer.policy_version == 0, "of a job that was trained with another objective before"
    with pytest.raises(UserError, match=r"algorithm\.objective\.valueModel: missing cannot be loaded as critic \("):
        TrainerWithCritic(model, tmp_path / "missing", CRITIC)


def test_a_critic_learns_from_all_tokens_of_ended_responses_and_from_no_others(model: Path) -> None:
    trainer = TrainerWithCritic(model, model, CRITIC)
    ended, *others = BATCHES[0]
    masked = replace(ended, loss_mask=np.zeros(ended.num_response_tokens, np.bool_))
    sums = trainer.accumulate([masked, *(replace(one, returns=None, is_finished=False) for one in others)])
    assert sums.critic.num_tokens == ended.num_response_tokens
    assert sums.num_loss_tokens == sum(one.num_loss_tokens for one in others)


def test_a_step_without_a_token_for_the_policy_trains_the_critic_alone(model: Path) -> None:
    trainer = TrainerWithCritic(model, model, replace(CRITIC, weight_decay=0.0))
    masked = [replace(one, loss_mask=np.zeros(one.num_response_tokens, np.bool_)) for one in BATCHES[0]]
    before, values = dict(trainer.weights()), trainer.values(masked)
    assert trainer.accumulate(masked).num_loss_tokens == 0
    report = trainer.update(step_denominator(masked, CRITIC))
    assert report.critic is not None
    assert (report.grad_norm, report.critic.grad_norm > 0, report.policy_version) == (0.0, True, 1)
    assert all(np.array_equal(before[name], weights) for name, weights in trainer.weights())
    assert any(not np.array_equal(own, values[place]) for place, own in trainer.values(masked).items())


def norms_and_values(world: World, model: Path, options: TrainerOptions) -> tuple[list[float], Any, set[Any]]:
    """Train alone; the types are those of the head's inputs, weights and results."""
    trainer, types = TrainerWithCritic(model, model, options, world), set[Any]()
    head = trainer._critic._value_model.module.get_submodule(HEAD)
    head.register_forward_hook(
        lambda head, hidden, found: types.update((hidden[0].dtype, head.weight.dtype, found.dtype))
    )
    norms = list[float]()
    for samples in BATCHES:
        trainer.accumulate(samples)
        report = trainer.update(100.0)
        assert report.critic is not None
        norms.append(report.critic.grad_norm)
    return norms, np.concatenate(list(trainer.values(BATCHES[0]).values())), types


def test_values_are_computed_in_float32_behind_layers_in_bfloat16(model: Path) -> None:
    narrow = replace(CRITIC, dtype=TrainerDtype.BFLOAT16)
    (expected, values, _), (found, rounded, types) = (
        kept_ranks(1).run(norms_and_values, model, options)[0] for options in (CRITIC, narrow)
    )
    assert types == {torch.float32}
    assert found != expected, "layers round"
    assert found == pytest.approx(expected, rel=0.02)
    assert np.abs(rounded - values).mean() < 0.02


def save_after_a_step(world: World, model: Path, sizes: ParallelSizes, loaded: Path | None, saved: Path) -> Any:
    """Continue with a step, sleep, save; the values are those of the saved weights."""
    trainer = TrainerWithCritic(model, model, CRITIC, world, sizes)
    if loaded is not None:
        trainer.load(loaded)
    trainer.accumulate(own_part(BATCHES[0], world, sizes))
    trainer.update(100.0)
    trainer.sleep()
    trainer.begin_save(saved)()
    values = trainer.values(BATCHES[1] if sizes.fsdp == 1 else own_part(BATCHES[1], world, sizes))
    return {place: list(of_one) for place, of_one in values.items()}


def test_a_checkpoint_restores_the_critic_under_other_sizes(model: Path, tmp_path: Path) -> None:
    kept_ranks(2).run(save_after_a_step, model, HALVES, None, tmp_path / "first")
    values = save_after_a_step(World(), model, ONE, tmp_path / "first", tmp_path / "second")
    twice = TrainerWithCritic(model, model, CRITIC)
    for _ in range(2):
        twice.accumulate(BATCHES[0])
        twice.update(100.0)
    opened = AutoModelForSequenceClassification.from_pretrained(tmp_path / "second" / "critic", num_labels=1)
    for place, sample in enumerate(BATCHES[1][:4]):
        assert np.allclose(values[place], twice.values([sample])[0], atol=1e-4)
        tokens = torch.tensor([[*sample.prompt_tokens, *sample.trajectory.tokens]])
        hidden = opened.base_model(tokens).last_hidden_state
        own = opened.score(hidden)[0, len(sample.prompt_tokens) - 1 : -1, 0].detach().numpy()
        assert np.allclose(values[place], own, atol=1e-5)
    assert any(abs(value) > 1e-3 for own in values.values() for value in own)


@pytest.mark.soak
@pytest.mark.parametrize("objective", [Ppo(value_learning_rate=3e-3), Tppo(value_learning_rate=3e-3)])
def test_a_policy_learns_which_tokens_are_rewarded_from_single_responses(objective: Any, model: Path) -> None:
    """Without engines: responses of 6 tokens, each worth a sixth if it is below 40; with TPPO cut after 3."""
    options = replace(CRITIC, objective=objective, learning_rate=3e-3, kl_coefficient=0.0, temperature=1.0)
    trainer = TrainerWithCritic(model, model, options)
    torch.manual_seed(0)
    rewards, kept = list[float](), list[Sample]()
    for step in range(30):
        samples = [*(_sampled(trainer, one, step) for one in kept), *_begun(trainer, step, 32 - len(kept), objective)]
        values = trainer.values(samples)
        by_key = {sample.key: values[place] for place, sample in enumerate(samples)}
        estimated = with_estimates(samples, by_key, objective)
        trainer.accumulate(estimated)
        trainer.update(step_denominator(estimated, options))
        finished = [one.reward for one in samples if one.is_finished]
        rewards += [float(np.mean(finished))] if finished else []
        kept = [one for one in samples if not one.is_finished]
    assert np.mean(rewards[-4:]) > np.mean(rewards[:8]) + 0.25, rewards


def _begun(trainer: TrainerWithCritic, step: int, number: int, objective: Any) -> list[Sample]:
    """New responses, cut after half of their tokens where the objective trains on such."""
    begun = [Sample(Draw(step, index), 0, (7, 8), EMPTY, 0.0, 0.0, is_finished=False) for index in range(number)]
    half = [_sampled(trainer, one, step) for one in begun]
    return half if objective.trains_unfinished else [_sampled(trainer, one, step) for one in half]


def _sampled(trainer: TrainerWithCritic, sample: Sample, version: int) -> Sample:
    """The response with three more tokens; with six it has ended, and only what this version sampled is in the loss."""
    policy, trajectory = trainer._policy._model, sample.trajectory
    for _ in range(3):
        with torch.no_grad():
            tokens = torch.tensor([[*sample.prompt_tokens, *trajectory.tokens]])
            log_probs = torch.log_softmax(policy._head(policy._hidden(tokens, [tokens.shape[1]])[0, -1]), -1)
        token = int(torch.multinomial(log_probs.exp(), 1))
        trajectory += Trajectory.sampled(version, [token], [float(log_probs[token])])
    mask = np.array([run.policy_version == version for run in trajectory.runs])
    reward = float(np.mean(trajectory.tokens < 40)) if len(trajectory) == 6 else 0.0
    return replace(sample, trajectory=trajectory, loss_mask=mask, reward=reward, is_finished=len(trajectory) == 6)
