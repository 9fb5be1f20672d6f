"""What trainers of every backend do alike."""

from dataclasses import replace
from typing import cast

import numpy as np
import pytest
import torch

from longshore.policy.draws import Draw
from longshore_runtime.backends.host_copies import Move
from longshore_runtime.backends.sums import GradientSums
from longshore_runtime.backends.trainer_protocol import Sample
from longshore_runtime.backends.trainer_rules import (
    ReferencePlace,
    clipping,
    require_finite,
    split,
)
from longshore_runtime.errors import UserError
from longshore_runtime.trajectories.trajectory import Trajectory
from tests.contract.trainers.replicas import OPTIONS, without_kl
from tests.contract.trainers.test_host_copies import DEVICE, Holder


def sample(index: int, advantage: float, num_tokens: int = 2, *, in_loss: bool = True) -> Sample:
    return Sample(
        draw=Draw(0, index),
        index=0,
        prompt_tokens=(1,),
        trajectory=Trajectory.sampled(0, [1] * num_tokens, [-1.0] * num_tokens),
        advantage=advantage,
        reward=0.0,
        loss_mask=None if in_loss else (False,) * num_tokens,
    )


SILENT, POSITIVE, MASKED, NEGATIVE = (
    sample(0, 0.0), sample(1, 1.0), sample(2, 1.0, num_tokens=5, in_loss=False), sample(3, -1.0),
)  # fmt: skip
SAMPLES = (SILENT, POSITIVE, MASKED, NEGATIVE)


def test_zero_advantages_need_no_backward_pass_and_samples_outside_the_loss_no_pass() -> None:
    parts = split(SAMPLES, without_kl())
    assert parts.silent == [SILENT]
    assert parts.trained == [POSITIVE, NEGATIVE]
    assert parts.left_out == [MASKED]
    assert parts.left_out_sums == GradientSums(num_tokens=5)


def test_advantages_of_tokens_outside_the_loss_need_no_backward_pass() -> None:
    first, *_ = values = np.array([1.0, 0.0], np.float32)
    masked, learns = (replace(POSITIVE, advantage=values, loss_mask=mask) for mask in ((False, True), (True, False)))
    assert split((masked, learns), without_kl()).trained == [learns]
    assert (masked.mean_advantage, learns.mean_advantage) == (0.0, first)
    assert masked != replace(masked, advantage=0.0)


def test_with_a_kl_penalty_a_zero_advantage_has_a_gradient() -> None:
    parts = split(SAMPLES, OPTIONS)
    assert parts.silent == []
    assert parts.trained == [SILENT, POSITIVE, NEGATIVE]
    assert parts.left_out == [MASKED]


def test_large_gradients_are_brought_down_to_the_limit_and_small_ones_left_alone() -> None:
    options = replace(OPTIONS, max_grad_norm=2.0)
    assert clipping(options, 8.0) == pytest.approx(0.25)
    assert clipping(options, 1.0) == clipping(options, 0.0) == 1.0


@pytest.mark.parametrize("norm", [float("nan"), float("inf")])
def test_gradients_that_are_not_finite_name_the_step_and_the_field(norm: float) -> None:
    require_finite(1.0, 7)
    with pytest.raises(UserError, match=f"algorithm.learningRate: the gradient norm of optimizer step 7 is {norm}"):
        require_finite(norm, 7)


class Reference(Holder):
    """Says where it is."""

    def _apply(self, move: Move) -> None:
        self.apply(move)

    @property
    def place(self) -> str:
        (place,) = {device.type for device, _ in self.state}
        return place


def test_a_reference_beside_the_trainer_computes_where_it_is() -> None:
    reference, reported = Reference(), list[str]()
    place = ReferencePlace(cast(torch.nn.Module, reference), DEVICE, offloads=False)
    with place.computing(lambda: reported.append("leave"), lambda: reported.append("come back")):
        assert (reference.place, reported) == ("meta", [])
    assert (reference.place, reported) == ("meta", [])
    place.sleep()
    assert reference.place == "cpu"
    place.wake()
    assert reference.place == "meta"


def test_a_reference_on_the_host_takes_the_place_of_the_model_while_it_computes() -> None:
    reference, reported = Reference(), list[str]()
    place = ReferencePlace(cast(torch.nn.Module, reference), DEVICE, offloads=True)
    assert reference.place == "cpu"
    with (
        pytest.raises(RuntimeError),
        place.computing(lambda: reported.append("leave"), lambda: reported.append("come back")),
    ):
        assert (reference.place, reported) == ("meta", ["leave"])
        raise RuntimeError
    assert (reference.place, reported) == ("cpu", ["leave", "come back"]), "also when a pass fails"
    place.wake()
    assert reference.place == "cpu"
