"""The losses, against numbers worked out by hand and against the formulas of the papers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from longshore.api.algorithm import KlEstimator
from longshore.api.objectives.advantages import RewardedGroup
from longshore.api.objectives.registry import OBJECTIVES
from longshore.policy.draws import Draw
from longshore_runtime.backends.losses import estimated_kl, sample_losses, token_log_probs, weighted_losses
from longshore_runtime.backends.sums import GradientSums
from longshore_runtime.backends.trainer_protocol import Sample, TrainerOptions
from longshore_runtime.trainer.group import step_denominator
from longshore_runtime.trajectories.trajectory import Trajectory
from tests.contract.trainers.reference_losses import Response, reference_loss
from tests.contract.trainers.replicas import BUILT_IN, options_of, with_old, without_kl
from tests.properties import examples

TOKEN_LEVEL = [name for name in BUILT_IN if name != "GSPO"]


def policy_loss(ratio: float, advantage: float, options: TrainerOptions) -> tuple[float, float, float]:
    """(loss, whether clipped, gradient by the log-probability) of one token that has log-probability 0 now."""
    log_prob = torch.tensor([0.0], requires_grad=True)
    rollout = torch.tensor([-math.log(ratio)])
    result = weighted_losses(log_prob, rollout, torch.tensor([advantage]), None, [1], options)
    (gradient,) = torch.autograd.grad(result.total.sum(), log_prob)
    return result.policy.item(), result.clipped.item(), gradient.item()


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "clipped", "gradient"),
    [
        (1.0, 2.0, -2.0, 0, -2.0),
        (1.1, 2.0, -2.2, 0, -2.2),
        (1.5, 2.0, -2.56, 1, 0.0),
        (0.5, 2.0, -1.0, 0, -1.0),
        (0.5, -2.0, 1.6, 1, 0.0),
        (1.5, -2.0, 3.0, 0, 3.0),
        (0.9, -2.0, 1.8, 0, 1.8),
    ],
)
def test_the_ratio_is_clipped_only_where_it_already_moved_with_the_advantage(
    ratio: float, advantage: float, loss: float, clipped: int, gradient: float
) -> None:
    assert policy_loss(ratio, advantage, without_kl()) == pytest.approx((loss, clipped, gradient), rel=1e-5)


@pytest.mark.parametrize("estimator", [KlEstimator.K1, KlEstimator.K3])
def test_estimates_of_the_kl_divergence_have_no_bias(estimator: KlEstimator) -> None:
    generator = torch.Generator().manual_seed(0)
    policy, reference = (torch.randn(50, generator=generator, dtype=torch.float64).log_softmax(0) for _ in range(2))
    expected = (policy.exp() * (policy - reference)).sum()
    assert (policy.exp() * estimated_kl(estimator, policy, reference)).sum().item() == pytest.approx(
        expected.item(), rel=1e-9
    )


def test_log_probs_and_gradients_do_not_depend_on_chunks() -> None:
    torch.manual_seed(0)
    head = torch.nn.Linear(8, 30, bias=False)
    hidden, targets = torch.randn(25, 8, requires_grad=True), torch.randint(0, 30, (25,))

    def values_and_gradients(chunk_tokens: int, *, of_entropies: bool = False) -> list[torch.Tensor]:
        log_probs, entropies = token_log_probs(
            hidden, head, targets, 0.7, chunk_tokens, differentiates_entropies=of_entropies
        )
        total = (log_probs + entropies if of_entropies else log_probs).sum()
        return [log_probs, entropies, *torch.autograd.grad(total, [hidden, head.weight])]

    for one, other in zip(
        values_and_gradients(25, of_entropies=True), values_and_gradients(4, of_entropies=True), strict=True
    ):
        assert torch.allclose(one, other, atol=1e-6)
    whole = values_and_gradients(25)
    expected = torch.log_softmax(head(hidden) / 0.7, -1)
    assert torch.allclose(whole[0], expected[torch.arange(25), targets])
    assert torch.allclose(whole[1], -(expected.exp() * expected).sum(-1))
    for one, other in zip(whole, values_and_gradients(4), strict=True):
        assert torch.allclose(one, other, atol=1e-6)


def test_a_gradient_cannot_be_taken_twice_from_the_memory_that_it_overwrites() -> None:
    head, hidden = torch.nn.Linear(8, 30, bias=False), torch.randn(5, 8, requires_grad=True)
    log_probs, _ = token_log_probs(hidden, head, torch.arange(5), 1.0, 5)
    torch.autograd.grad(log_probs.sum(), hidden, retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(log_probs.sum(), hidden)


@pytest.mark.parametrize("largest", [1e4, 3e38])
def test_logits_far_apart_and_in_bfloat16_have_finite_log_probs_and_gradients(largest: float) -> None:
    head = torch.nn.Linear(3, 3, bias=False, dtype=torch.bfloat16)
    torch.nn.init.eye_(head.weight)
    hidden = torch.tensor([[largest, 0.0, -largest], [1.0, 2.0, 3.0]], dtype=torch.bfloat16, requires_grad=True)
    log_probs, entropies = token_log_probs(hidden, head, torch.tensor([0, 1]), 1.0, 5)
    (gradient,) = torch.autograd.grad(log_probs.sum(), hidden)
    expected = torch.log_softmax(hidden.detach().float(), -1)[[0, 1], [0, 1]]
    assert torch.allclose(log_probs, expected)
    assert log_probs.dtype is torch.float32
    assert entropies.isfinite().all()
    assert gradient.isfinite().all()


@dataclass(frozen=True)
class Batch:
    """Samples with the log-probabilities that the trained and the initial weights give their tokens."""

    samples: tuple[Sample, ...]
    new: tuple[tuple[float, ...], ...]
    initial: tuple[tuple[float, ...], ...]


def sample(index: int, rollout: Sequence[float], advantage: float, **more: Any) -> Sample:
    trajectory = Trajectory.sampled(0, [2] * len(rollout), rollout)
    return Sample(Draw(0, 0), index, (1,), trajectory, advantage, reward=0.0, **more)


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    """Small ones; ratios lie on both sides of every clip and of the cap, and some tokens are masked."""
    log_probs = st.floats(-3.0, -0.0078125, width=32)
    samples, new, initial = [], [], []
    for index in range(draw(st.integers(1, 4))):
        length = draw(st.integers(1, 4))

        def values(length: int = length) -> tuple[float, ...]:
            return tuple(draw(st.lists(log_probs, min_size=length, max_size=length)))

        mask = draw(st.none() | st.lists(st.booleans(), min_size=length, max_size=length).map(tuple))
        samples.append(sample(index, values(), draw(st.floats(-2, 2)), loss_mask=mask))
        new.append(values())
        initial.append(values())
    return Batch(tuple(samples), tuple(new), tuple(initial))


def ours(batch: Batch, options: TrainerOptions) -> tuple[float, list[float]]:
    """Loss of the batch as a whole step, and its gradient by every log-probability."""
    log_probs = flat(batch.new).requires_grad_()
    loss = sums_of(batch, options, log_probs)[0] / step_denominator(batch.samples, options)
    return loss.item(), torch.autograd.grad(loss, log_probs)[0].tolist()


def sums_of(batch: Batch, options: TrainerOptions, log_probs: Tensor) -> tuple[Tensor, GradientSums]:
    reference = flat(batch.initial) if options.kl_coefficient else None
    return sample_losses(with_old(batch.samples), log_probs, torch.ones_like(log_probs), reference, options)


def expected(batch: Batch, options: TrainerOptions) -> tuple[float, list[float]]:
    """The same by the reference."""
    log_probs = flat(batch.new).requires_grad_()
    pieces = torch.split(log_probs, [len(values) for values in batch.new])
    responses = [
        Response(new, one.trajectory.log_probs.tolist(), initial, one.advantage, one.in_loss.tolist())
        for one, new, initial in zip(batch.samples, pieces, batch.initial, strict=True)
    ]
    loss = reference_loss(responses, options) + 0.0 * log_probs.sum()
    return loss.item(), torch.autograd.grad(loss, log_probs)[0].tolist()


def flat(values: tuple[tuple[float, ...], ...]) -> Tensor:
    return torch.tensor([value for part in values for value in part], dtype=torch.float64)


def agree(one: tuple[float, list[float]], other: tuple[float, list[float]]) -> bool:
    same: bool = [one[0], *one[1]] == pytest.approx([other[0], *other[1]], rel=1e-9, abs=1e-12)
    return same


@pytest.mark.parametrize("name", BUILT_IN)
@settings(max_examples=examples(60), deadline=None)
@given(batches())
def test_losses_and_gradients_are_those_of_the_papers(name: str, batch: Batch) -> None:
    options = options_of(name)
    assert agree(ours(batch, options), expected(batch, options))


@pytest.mark.parametrize("name", BUILT_IN)
def test_without_an_advantage_only_penalties_have_a_gradient(name: str) -> None:
    options = options_of(name, without_kl())
    silent = replace(TWO, samples=tuple(replace(one, advantage=0.0) for one in TWO.samples))
    assert any(ours(silent, options)[1]) == options.trains_without_advantage


@pytest.mark.parametrize("name", [name for name in BUILT_IN if name != "GMPO"])  # Its ratio mixes the tokens' clips.
@settings(max_examples=examples(20), deadline=None)
@given(batches(), st.data())
def test_a_token_with_its_own_advantage_learns_as_in_a_response_with_that(
    name: str, batch: Batch, data: st.DataObject
) -> None:
    options = options_of(name)
    each = [data.draw(st.sampled_from((-2.0, 0.0, 0.5, 1.0))) for values in batch.new for _ in values]
    parts = np.split(np.array(each, np.float32), np.cumsum([len(values) for values in batch.new])[:-1])
    samples = tuple(replace(one, advantage=part) for one, part in zip(batch.samples, parts, strict=True))
    gradient = ours(replace(batch, samples=samples), options)[1]
    for advantage in set(each):
        same = replace(batch, samples=tuple(replace(one, advantage=advantage) for one in batch.samples))
        wanted = [
            value if own == advantage else found
            for own, value, found in zip(each, ours(same, options)[1], gradient, strict=True)
        ]
        assert gradient == pytest.approx(wanted, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("name", BUILT_IN)
def test_what_the_comparison_is_made_of_can_fail(name: str) -> None:
    options = options_of(name)
    truth = expected(TWO, options)
    loss, gradient = ours(TWO, options)
    assert agree((loss, gradient), truth)
    unmasked = replace(TWO, samples=tuple(replace(sample, loss_mask=None) for sample in TWO.samples))
    fewer = Batch(TWO.samples[:1], TWO.new[:1], TWO.initial[:1])
    assert not agree((loss, [1.001 * value for value in gradient]), truth), "another denominator"
    assert not agree(ours(unmasked, options), truth), "masks ignored"
    assert not agree((ours(fewer, options)[0], [*ours(fewer, options)[1], 0.0]), truth), "a sample lost"


TWO = Batch(
    samples=(
        sample(0, (-1.0, -0.5, -2.0), 1.5, loss_mask=(False, True, True)),
        sample(1, (-0.7,), -0.5),
    ),
    new=((-400.0, -0.6, -2.2), (-0.6,)),
    initial=((-1.0, -0.4, -1.7), (-0.9,)),
)
"""A masked token whose ratio is 0, beside ordinary ones."""


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_masked_token_has_no_gradient_and_is_in_no_sum_but_the_count(name: str) -> None:
    log_probs = flat(TWO.new).requires_grad_()
    loss, sums = sums_of(TWO, options_of(name), log_probs)
    (gradient,) = torch.autograd.grad(loss, log_probs)
    assert gradient[0] == 0.0
    assert all(gradient[1:] != 0.0)
    assert (sums.num_tokens, sums.num_loss_tokens, sums.entropy) == (4, 3, 3.0)
    assert sums.mismatch_max == pytest.approx(0.2), "of tokens in the loss: the masked one is 399 apart"


def test_engine_and_trainer_are_compared_at_tokens_of_the_rounds_own_weights_alone() -> None:
    """Tokens of older weights are in the loss, and say nothing about the engine."""
    options = options_of("GRPO")
    fresh = tuple(replace(sample, loss_mask=None) for sample in TWO.samples)
    stale = tuple(replace(sample, num_stale_tokens=sample.num_response_tokens - 1) for sample in fresh)
    distances = [
        abs(new - old)
        for sample, news in zip(stale, TWO.new, strict=True)
        for new, old in list(zip(news, sample.trajectory.log_probs, strict=True))[sample.num_stale_tokens :]
    ]
    _, sums = sums_of(replace(TWO, samples=stale), options, flat(TWO.new))
    assert (sums.num_loss_tokens, sums.num_compared_tokens) == (4, 2)
    assert sums.mean_mismatch == pytest.approx(sum(distances) / 2)
    assert sums.mismatch_max == pytest.approx(max(distances))
    assert sums_of(replace(TWO, samples=fresh), options, flat(TWO.new))[1].num_compared_tokens == 4
    _, masked = sums_of(TWO, options, flat(TWO.new))
    assert masked.num_compared_tokens == sum(sample.num_compared_tokens for sample in TWO.samples) == 3


def test_without_a_token_to_compare_there_is_no_mismatch() -> None:
    stale = tuple(replace(sample, num_stale_tokens=sample.num_response_tokens) for sample in TWO.samples)
    _, sums = sums_of(replace(TWO, samples=stale), options_of("GRPO"), flat(TWO.new))
    assert (sums.mean_mismatch, sums.mismatch_max) == (None, 0.0)


@pytest.mark.parametrize("name", BUILT_IN)
def test_samples_without_any_token_in_the_loss_give_zero_and_a_denominator_of_one(name: str) -> None:
    masked = tuple(replace(one, loss_mask=(False,) * one.num_response_tokens) for one in TWO.samples)
    options = options_of(name)
    assert step_denominator(masked, options) == step_denominator([], options) == 1.0
    assert ours(replace(TWO, samples=masked), options) == (0.0, [0.0] * 4)


@pytest.mark.parametrize("factor", [2.0, 0.5])
def test_the_ratio_of_a_response_is_clipped_as_a_whole(factor: float) -> None:
    """One token far off and one against it: their geometric mean decides, for both alike."""
    one = sample(0, (-1.0, -1.0), 1.0 if factor > 1 else -1.0)
    options = options_of("GSPO", without_kl())
    inside = Batch((one,), ((-1.0 + math.log(factor), -1.0 - math.log(factor)),), ((0.0, 0.0),))
    outside = Batch((one,), ((-1.0 + 2 * math.log(factor), -1.0),), ((0.0, 0.0),))
    assert ours(inside, options)[1] == pytest.approx([-one.advantage / 2] * 2)
    assert ours(outside, options)[1] == [0.0, 0.0]
    assert sums_of(outside, options, flat(outside.new))[1].clipped == 2.0


OF_THE_PAPER = replace(without_kl(), objective=OBJECTIVES["GSPO"])
"""GSPO, section 5.1."""


@dataclass(frozen=True)
class Rounded:
    """Responses whose log-probabilities by the trainer are the engine's and a Gaussian difference.

    Its mean size is 0.01, as with bfloat16. The engine sampled the responses, so the mean difference is -KL.
    """

    lengths: tuple[int, ...]
    trainer: Tensor
    engine: Tensor

    @classmethod
    def of(cls, seed: int, mean_size: float = 0.01) -> "Rounded":
        generator, lengths = torch.Generator().manual_seed(seed), (500, 1_000, 2_000) * 50
        deviation = mean_size * math.sqrt(math.pi / 2)
        noise = torch.randn(sum(lengths), generator=generator, dtype=torch.float64)
        trainer = torch.full_like(noise, -1.0)
        return cls(lengths, trainer, trainer - deviation * noise + deviation**2 / 2)

    def num_without_gradient(
        self, advantage: float, options: TrainerOptions, old: Tensor | None = None, is_fresh: Tensor | None = None
    ) -> int:
        """Responses in which clipping left no token a gradient."""
        log_probs = self.trainer.clone().requires_grad_()
        advantages = torch.full_like(log_probs, advantage)
        found = weighted_losses(log_probs, self.engine, advantages, None, self.lengths, options, old, is_fresh)
        (gradient,) = torch.autograd.grad(found.total.sum(), log_probs)
        return sum(not part.any() for part in torch.split(gradient, self.lengths))


def test_rounding_takes_the_gradient_of_no_response_in_the_first_update() -> None:
    """The clips of GSPO are as tight as the difference between engine and trainer.

    Relative to the engine, many responses would lose their gradient, and more of those whose probability is to fall.
    """
    rounded = Rounded.of(seed=0)

    def lost(advantage: float, old: Tensor | None = None, is_fresh: Tensor | None = None) -> int:
        return rounded.num_without_gradient(advantage, OF_THE_PAPER, old, is_fresh)

    for advantage in (1.0, -1.0):
        assert lost(advantage) == 0
        assert lost(advantage, old=rounded.trainer) == 0, "as a pass has computed them"
        assert lost(advantage, is_fresh=torch.ones_like(rounded.trainer, dtype=torch.bool)) == 0
    assert 0 < 1.5 * lost(1.0, old=rounded.engine) < lost(-1.0, old=rounded.engine)


@pytest.mark.parametrize("name", TOKEN_LEVEL)
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_rounding_is_far_from_the_clips_of_tokens(name: str, advantage: float) -> None:
    rounded = Rounded.of(seed=1, mean_size=0.03)
    assert rounded.num_without_gradient(advantage, options_of(name, without_kl())) == 0


def test_in_the_first_update_every_response_weighs_as_much_as_with_equal_engines() -> None:
    rounded, gradients = Rounded.of(seed=2), []
    for engine in (rounded.engine, rounded.trainer):
        log_probs = rounded.trainer.clone().requires_grad_()
        found = weighted_losses(log_probs, engine, torch.ones_like(log_probs), None, rounded.lengths, OF_THE_PAPER)
        gradients.append(torch.autograd.grad(found.total.sum(), log_probs)[0])
    assert torch.equal(*gradients)


@pytest.mark.parametrize("moved", [0.1, -0.1])
@pytest.mark.parametrize("has_old", [True, False])
def test_the_ratio_of_a_response_holds_what_was_learned_since_its_first_tokens(moved: float, has_old: bool) -> None:
    """Older weights sampled the first two of four tokens, of which only the engine's log-probabilities are known.

    Where the round's own weights sampled, engine and trainer differ by rounding only.
    """
    new, engine = (-1.0,) * 4, (-1.0 - moved, -1.0 - moved, -1.02, -0.97)
    one = sample(0, engine, 1.0, num_stale_tokens=2, old_log_probs=new)
    wide = options_of("GSPO", without_kl())
    given = one if has_old else replace(one, old_log_probs=None)
    log_probs = torch.tensor(new, dtype=torch.float64, requires_grad=True)
    loss, _ = sample_losses([given], log_probs, torch.zeros(4), None, wide)
    assert -loss.item() == pytest.approx(math.exp(2 * moved / 4))
    assert torch.autograd.grad(loss, log_probs)[0].tolist() == pytest.approx([loss.item() / 4] * 4)
    clipped = sample_losses([given], log_probs, torch.zeros(4), None, OF_THE_PAPER)[1].clipped
    assert clipped == (4 if moved > 0 else 0), "a gain that was made already"


@pytest.mark.parametrize(
    ("name", "weight"),
    [
        ("GRPO", math.sqrt(0.75) / 16),
        ("GSPO", math.sqrt(0.75) / 2 / 4),
        ("DrGRPO", 0.5 / 40),
        ("RLOO", 2 / 3 / 4),
    ],
)
def test_the_worked_example_of_the_docs(name: str, weight: float) -> None:
    """Rewards 1, 0, 0, 1 of responses with 2, 6, 4, 4 tokens out of 10, on-policy."""
    [advantages] = OBJECTIVES[name].advantages([RewardedGroup([1.0, 0.0, 0.0, 1.0], (2, 6, 4, 4))])
    values = tuple((-1.0,) * length for length in (2, 6, 4, 4))
    samples = tuple(
        sample(index, one, advantage) for index, (one, advantage) in enumerate(zip(values, advantages, strict=True))
    )
    options = replace(options_of(name, without_kl()), max_response_tokens=10)
    assert ours(Batch(samples, values, values), options)[1][:2] == pytest.approx([-weight] * 2, rel=1e-5)
