"""On-policy distillation: gradients, and the tokens that a teacher must have."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from longshore.api.objectives.distillation import Distillation, Teacher, TeacherEndpoint
from longshore_runtime.backends.megatron.trainer import MegatronTrainer
from longshore_runtime.backends.tiny_model import build_tiny_model
from longshore_runtime.backends.torch_trainer import TorchTrainer
from longshore_runtime.backends.trainer_protocol import Sample
from longshore_runtime.data.tokenizer import require_same_tokens
from longshore_runtime.errors import UserError
from longshore_runtime.judge.options import RemoteJudgeOptions
from longshore_runtime.judge.teacher import RemoteTeacher
from longshore_runtime.trajectories.trajectory import Trajectory
from tests.contract.judge.teacher_server import TeacherServer
from tests.contract.trainers.plans import megatron_gradients, torch_gradients
from tests.contract.trainers.replicas import OPTIONS, make_samples, with_masks

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


@pytest.mark.parametrize(
    ("kind", "gradients"), [(TorchTrainer, torch_gradients), (MegatronTrainer, megatron_gradients)]
)
def test_the_gradient_with_an_endpoint_is_that_with_a_teacher_that_trainers_hold(
    kind: Any, gradients: Any, model: Path, tmp_path: Path
) -> None:
    """Some tokens of the samples were observed, or are stale; the server computes with the same weights."""
    build_tiny_model(tmp_path / "teacher", seed=7, hidden_size=64, num_hidden_layers=1)
    held = kind(model, ALONE, reference=tmp_path / "teacher")
    samples = with_masks(SAMPLES)
    held_sums = held.accumulate(samples)
    wanted = gradients(held, 1.0)

    endpoint = TeacherEndpoint(url="http://teacher/v1", model_name="large")
    options = replace(ALONE, objective=Distillation(teacher=Teacher(endpoint=endpoint)))
    assert not options.has_reference
    trainer = kind(model, options)
    taught = taught_samples(samples, tmp_path / "teacher")
    sums = trainer.accumulate(taught)
    assert (sums.loss, sums.kl) == (pytest.approx(held_sums.loss, rel=1e-5), pytest.approx(held_sums.kl, rel=1e-5))
    found = gradients(trainer, 1.0)
    assert found.keys() == wanted.keys()
    for name, gradient in wanted.items():
        np.testing.assert_allclose(found[name], gradient, rtol=1e-5, atol=1e-5 * np.abs(gradient).max(), err_msg=name)
    assert max(np.abs(one).max() for one in wanted.values()) > 0.01


def taught_samples(samples: Sequence[Sample], directory: Path) -> list[Sample]:
    """Return the samples with what a server that computes with the model in a directory says about them."""
    model: Any = AutoModelForCausalLM.from_pretrained(directory)

    @torch.no_grad()
    def log_probs(tokens: list[int]) -> list[float]:
        ids = torch.tensor([tokens])
        every = torch.log_softmax(model(ids).logits[0, :-1].float(), dim=-1)
        return [0.0, *every.gather(-1, ids[0, 1:, None])[:, 0].tolist()]

    server = TeacherServer(log_probs)
    teacher = RemoteTeacher(RemoteJudgeOptions(server.url, "large"))
    try:
        answers = teacher.ask([(one.prompt_tokens, one.trajectory.tokens) for one in samples]).result()
    finally:
        teacher.close()
        server.close()
    return [replace(one, teacher_log_probs=found) for one, found in zip(samples, answers, strict=True)]


def test_a_teacher_with_other_tokens_is_refused() -> None:
    class Tokens:
        def __init__(self, **tokens: int) -> None:
            self.get_vocab = lambda: tokens

    require_same_tokens(Tokens(a=0, b=1), Tokens(a=0, b=1, c=2), "field")
    for other, found in ((Tokens(a=0), "no token of this one"), (Tokens(a=0, b=2), "token 2 of this one")):
        with pytest.raises(UserError, match=f"'b' is token 1 of the model and {found}"):
            require_same_tokens(Tokens(a=0, b=1), other, "field")
