"""On-policy distillation: gradients, and the tokens that a teacher must have."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from longshore.api.objectives.distillation import Distillation, Teacher
from longshore_runtime.backends.megatron.trainer import MegatronTrainer
from longshore_runtime.backends.tiny_model import build_tiny_model
from longshore_runtime.backends.torch_trainer import TorchTrainer
from longshore_runtime.data.tokenizer import require_same_tokens
from longshore_runtime.errors import UserError
from longshore_runtime.trajectories.trajectory import Trajectory
from tests.contract.trainers.replicas import OPTIONS, make_samples

SAMPLES = make_samples()
OBJECTIVE = Distillation(teacher=Teacher(path="teacher"))
ALONE = replace(OPTIONS, objective=OBJECTIVE, kl_coefficient=0.0, learning_rate=1e-3, warmup_steps=0, temperature=1.0)


@pytest.mark.parametrize("kind", [TorchTrainer, MegatronTrainer])
@pytest.mark.parametrize("reward_weight", [0.0, 0.5])
def test_the_gradient_is_that_of_the_reverse_kl_divergence_and_of_rewards(
    kind: Any, reward_weight: float, model: Path, tmp_path: Path
) -> None:
    """Tokens that the student samples have ratio 1; their advantage is what the teacher says of them."""
    build_tiny_model(tmp_path / "teacher", seed=7, hidden_size=64, num_hidden_layers=1)
    options = replace(ALONE, objective=Distillation(teacher=Teacher(path="teacher"), reward_weight=reward_weight))
    trainer = kind(model, options, reference=tmp_path / "teacher")
    own = trainer.log_probs(SAMPLES)
    samples = [
        replace(
            one,
            trajectory=Trajectory(one.trajectory.tokens, own[place], one.trajectory.runs),
            advantage=reward_weight * float(one.mean_advantage),
            num_stale_tokens=0,
        )
        for place, one in enumerate(SAMPLES)
    ]
    sums = trainer.accumulate(samples)
    taught = TorchTrainer(tmp_path / "teacher", ALONE, reference=model).log_probs(samples)
    wanted = -sum(
        float((one.token_advantages + taught[place] - own[place])[one.in_loss].sum())
        for place, one in enumerate(samples)
    )
    assert sums.loss == pytest.approx(wanted, rel=1e-3, abs=1e-3)


def test_a_teacher_with_other_tokens_is_refused() -> None:
    class Tokens:
        def __init__(self, **tokens: int) -> None:
            self.get_vocab = lambda: tokens

    require_same_tokens(Tokens(a=0, b=1), Tokens(a=0, b=1, c=2), "field")
    for other, found in ((Tokens(a=0), "no token of this one"), (Tokens(a=0, b=2), "token 2 of this one")):
        with pytest.raises(UserError, match=f"'b' is token 1 of the model and {found}"):
            require_same_tokens(Tokens(a=0, b=1), other, "field")
