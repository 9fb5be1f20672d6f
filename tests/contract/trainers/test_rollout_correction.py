"""Rollout correction, against weights that are written out response by response in double precision."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.api.correction import RolloutCorrection, RolloutIs, RolloutRs
from longshore.policy.draws import Draw
from longshore_runtime.backends.losses import sample_losses
from longshore_runtime.backends.sums import CorrectionSums, GradientSums
from longshore_runtime.backends.trainer_protocol import Sample, TrainerOptions
from longshore_runtime.telemetry.step_metrics import correction_metrics
from longshore_runtime.trainer.group import step_denominator
from longshore_runtime.trajectories.trajectory import Trajectory
from tests.contract.trainers.replicas import clipped_at, clips, options_of, without_kl
from tests.properties import examples

TRL = RolloutCorrection()
CHOICES = st.builds(
    RolloutCorrection,
    rollout_is=st.sampled_from(RolloutIs),
    rollout_is_threshold=st.floats(1.0, 4.0),
    rollout_rs=st.sampled_from(RolloutRs),
    rollout_rs_threshold=st.floats(1.0, 4.0),
    rollout_rs_threshold_lower=st.floats(0.0, 0.9),
)


@dataclass(frozen=True)
class Response:
    """Log-probabilities of its tokens by the weights being trained, those of the step's start, and the engine."""

    new: tuple[float, ...]
    old: tuple[float, ...]
    rollout: tuple[float, ...]
    advantage: float
    in_loss: tuple[bool, ...]

    @property
    def ratios(self) -> list[float]:
        """Ratios of trainer to engine, of the tokens in the loss."""
        return [math.exp(o - r) for o, r, kept in zip(self.old, self.rollout, self.in_loss, strict=True) if kept]

    def sample(self, index: int, *, has_old: bool) -> Sample:
        old = self.old if has_old else None
        return Sample(
            Draw(0, 0), index, (1,), Trajectory.sampled(0, [2] * len(self.new), self.rollout), self.advantage, 0.0,
            loss_mask=self.in_loss, old_log_probs=old,
        )  # fmt: skip


@st.composite
def responses(draw: st.DrawFn) -> Response:
    length = draw(st.integers(1, 4))

    def values() -> tuple[float, ...]:
        return tuple(draw(st.lists(st.floats(-2.0, -0.0078125, width=32), min_size=length, max_size=length)))

    mask = tuple(draw(st.lists(st.booleans(), min_size=length, max_size=length)))
    return Response(values(), values(), values(), draw(st.floats(-2, 2)), mask)


def weight(ratios: Sequence[float], place: int, options: RolloutCorrection) -> float:
    """Weight of the token at this place among those of its response that are in the loss."""
    product = math.prod(ratios)
    geometric = product ** (1 / len(ratios))
    by_level = {"None": 1.0, "Token": ratios[place], "Sequence": product, "Geometric": geometric}
    judged = by_level[options.rollout_rs]
    if not options.rollout_rs_threshold_lower <= judged <= options.rollout_rs_threshold:
        return 0.0
    return min(by_level[options.rollout_is], options.rollout_is_threshold)


def wanted(batch: Sequence[Response], options: TrainerOptions) -> tuple[float, list[float]]:
    """Loss of a token mean over the batch, and its gradient by every log-probability."""
    assert options.rollout_correction is not None
    loss, gradient = 0.0, []
    num_tokens = max(1, sum(sum(response.in_loss) for response in batch))
    for one in batch:
        place = 0
        for new, old, kept in zip(one.new, one.old, one.in_loss, strict=True):
            if not kept:
                gradient.append(0.0)
                continue
            factor = weight(one.ratios, place, options.rollout_correction) / num_tokens
            ratio, advantage = math.exp(new - old), one.advantage
            (below, above) = clips(options)
            low, high = 1 - below, 1 + above
            is_clipped = (advantage > 0 and ratio > high) or (advantage < 0 and ratio < low)
            loss -= factor * (min(max(ratio, low), high) if is_clipped else ratio) * advantage
            gradient.append(0.0 if is_clipped else -factor * ratio * advantage)
            place += 1
    return loss, gradient


def ours(
    batch: Sequence[Response], options: TrainerOptions, *, has_old: bool = True
) -> tuple[float, list[float], GradientSums]:
    samples = [response.sample(index, has_old=has_old) for index, response in enumerate(batch)]
    log_probs = torch.tensor([value for one in batch for value in one.new], dtype=torch.float64, requires_grad=True)
    loss, sums = sample_losses(samples, log_probs, torch.zeros_like(log_probs), None, options)
    loss = loss / step_denominator(samples, options)
    return loss.item(), torch.autograd.grad(loss, log_probs)[0].tolist(), sums


def corrected(correction: RolloutCorrection) -> TrainerOptions:
    return replace(options_of("GRPO", without_kl()), rollout_correction=correction)


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(responses(), min_size=1, max_size=4), CHOICES)
def test_losses_and_gradients_are_weighted_as_written(batch: list[Response], correction: RolloutCorrection) -> None:
    options = corrected(correction)
    loss, gradient, _ = ours(batch, options)
    assert [loss, *gradient] == pytest.approx(
        [wanted(batch, options)[0], *wanted(batch, options)[1]], rel=1e-9, abs=1e-12
    )


@settings(max_examples=examples(50), deadline=None)
@given(st.lists(responses(), min_size=1, max_size=4), CHOICES)
def test_in_the_first_update_the_weights_being_trained_are_those_of_the_start(
    batch: list[Response], correction: RolloutCorrection
) -> None:
    options, first = corrected(correction), [replace(one, old=one.new) for one in batch]
    loss, gradient, sums = ours(first, options, has_old=False)
    assert [loss, *gradient] == pytest.approx(
        [*ours(first, options)[:1], *ours(first, options)[1]], rel=1e-9, abs=1e-12
    )
    assert sums.clipped == 0.0


DRIFTED = Response((-0.5, -0.5), old=(-1.0, -1.0), rollout=(-1.2, -1.3), advantage=1.0, in_loss=(True, True))
"""Trainer and engine differed by exp(0.2) and exp(0.3); the weights have moved by exp(0.5) since, past the clip."""


def test_a_weight_does_not_follow_the_weights_that_are_trained() -> None:
    """What an update changes is clipped, and what the engine did is weighted."""
    tis = RolloutCorrection(rollout_is=RolloutIs.TOKEN, rollout_is_threshold=2.0, rollout_rs=RolloutRs.NONE)
    for moved in (0.0, 0.1, 0.2):
        one = replace(DRIFTED, new=(-1.0 + moved, -1.0 + moved))
        _, gradient, _ = ours([one], corrected(tis))
        assert gradient == pytest.approx([-math.exp(moved + difference) / 2 for difference in (0.2, 0.3)])
    assert ours([DRIFTED], corrected(tis))[1] == [0.0, 0.0], "clipped"


@pytest.mark.parametrize(
    ("mode", "correction", "weights"),
    [
        ("token_truncate", {"rollout_is": "Token", "rollout_rs": "None"}, [2.0, 3.0, 0.5]),
        ("token_mask", {"rollout_is": "Token", "rollout_rs": "Token"}, [2.0, 0.0, 0.5]),
        ("sequence_truncate", {"rollout_is": "Sequence", "rollout_rs": "None"}, [3.0, 3.0, 3.0]),
        ("sequence_mask", {}, [0.0, 0.0, 0.0]),
    ],
)
def test_the_modes_of_trl(mode: str, correction: dict[str, str], weights: list[float]) -> None:
    """Ratios 2, 4 and 1/2, whose product is 4, and a cap of 3."""
    one = Response((-1.0,) * 3, (-1.0,) * 3, tuple(-1.0 - math.log(ratio) for ratio in (2, 4, 0.5)), -1.0, (True,) * 3)
    gradient = ours([one], corrected(RolloutCorrection.model_validate(correction)))[1]
    assert [3 * value for value in gradient] == pytest.approx(weights)


def test_the_kl_penalty_is_not_weighted() -> None:
    options = replace(corrected(TRL), kl_coefficient=0.1)
    rejected = replace(DRIFTED, rollout=(-5.0, -5.0))
    log_probs = torch.tensor(rejected.new, dtype=torch.float64, requires_grad=True)
    reference = log_probs.detach() - 0.5
    loss, _ = sample_losses([rejected.sample(0, has_old=True)], log_probs, torch.zeros(2), reference, options)
    assert torch.autograd.grad(loss, log_probs)[0].tolist() == pytest.approx([0.1 * (1 - math.exp(-0.5))] * 2)


OFF = Response((-0.5, -0.9), old=(-0.6, -0.8), rollout=(-0.8, -0.7), advantage=1.0, in_loss=(True, True))
"""Its tokens have the weights exp(0.2) and exp(-0.1), and its ratio is 1: one token rose as much as the other fell."""
BY_TOKEN = RolloutCorrection(rollout_is=RolloutIs.TOKEN, rollout_rs=RolloutRs.NONE)


def test_a_token_weight_scales_its_own_gradient_with_gspo() -> None:
    """GSPO-token, section 4.3, as in verl's compute_policy_loss_gspo."""
    options = replace(options_of("GSPO", without_kl()), rollout_correction=BY_TOKEN)
    loss, gradient, _ = ours([OFF], options)
    assert gradient == pytest.approx([-math.exp(0.2) / 2, -math.exp(-0.1) / 2])
    assert loss == pytest.approx(sum(gradient))


def test_a_lower_clip_of_one_or_more_clips_nothing() -> None:
    fallen = replace(OFF, new=(-6.0, -7.0), advantage=-1.0)
    clipped = replace(options_of("GRPO", without_kl()), rollout_correction=BY_TOKEN)
    assert ours([fallen], clipped)[1] == [0.0, 0.0]
    assert all(value > 0 for value in ours([fallen], clipped_at(10.0, 10.0, clipped))[1])


def test_products_of_thousands_of_ratios_stay_numbers() -> None:
    long = Response((-1.0,) * 4000, (-1.0,) * 4000, (-2.0,) * 4000, 1.0, (True,) * 4000)
    for rollout in (-2.0, -0.5):
        loss, gradient, sums = ours([replace(long, rollout=(rollout,) * 4000)], corrected(TRL))
        assert all(map(math.isfinite, [loss, *gradient, *correction_metrics(sums.correction).values()]))


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(responses(), min_size=1, max_size=4), CHOICES)
def test_metrics_follow_verls_definitions(batch: list[Response], correction: RolloutCorrection) -> None:
    """The metrics are of the whole batch, however it is divided among replicas."""
    batch = [one for one in batch if any(one.in_loss)]
    parts = [ours([one], corrected(correction))[2].correction for one in batch]
    metrics = correction_metrics(sum(parts, CorrectionSums()))
    if not batch:
        assert metrics == {}
        return
    sequence, upper = correction.rollout_is is RolloutIs.SEQUENCE, correction.rollout_is_threshold
    per_response = [
        [
            {"None": 1.0, "Token": ratio, "Sequence": math.prod(one.ratios)}[correction.rollout_is]
            for ratio in one.ratios
        ]
        for one in batch
    ]
    tokens = [value for values in per_response for value in values]
    compared = [values[0] for values in per_response] if sequence else tokens
    bounded = [min(max(value, 1 / upper), upper) for value in tokens]
    mean = sum(bounded) / len(bounded)
    rejected = [
        [weight(one.ratios, place, replace_is(correction)) == 0.0 for place in range(len(one.ratios))] for one in batch
    ]
    differences = [math.log(ratio) for one in batch for ratio in one.ratios]
    expected = {
        "rollout_is_mean": sum(tokens) / len(tokens),
        "rollout_is_max": max(tokens),
        "rollout_is_min": min(tokens),
        "rollout_is_std": math.sqrt(max(0.0, sum(value**2 for value in bounded) / len(bounded) - mean**2)),
        "rollout_is_eff_sample_size": 1 / (sum((value / mean) ** 2 for value in bounded) / len(bounded)),
        "rollout_is_ratio_fraction_high": sum(value > upper for value in compared) / len(compared),
        "rollout_is_ratio_fraction_low": sum(value < 1 / upper for value in compared) / len(compared),
        "rollout_rs_masked_fraction": sum(map(sum, rejected)) / len(tokens),
        "rollout_rs_seq_masked_fraction": sum(map(any, rejected)) / len(batch),
        "kl": -sum(differences) / len(differences),
        "k3_kl": sum(math.exp(one) - one - 1 for one in differences) / len(differences),
    }
    assert metrics == pytest.approx({f"rollout_corr/{name}": value for name, value in expected.items()}, abs=1e-7)


def replace_is(correction: RolloutCorrection) -> RolloutCorrection:
    """Weighing nothing, so that a weight of 0 is a rejection."""
    return correction.model_copy(update={"rollout_is": RolloutIs.NONE})
