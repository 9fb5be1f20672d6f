"""On-policy distillation: gradients, and the tokens that a teacher must have."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from longshore.api.objectives.distillation import Distillation, Teacher, TeacherEndpoint
from longshore_runtime.backends.megatron.trainer import MegatronTrainer
from longshore_runtime.backends.parallel_sizes import ParallelSizes
from longshore_runtime.backends.tiny_model import build_tiny_model
from longshore_runtime.backends.torch_trainer import TorchTrainer
from longshore_runtime.backends.trainer_protocol import Sample, TrainerOptions
from longshore_runtime.backends.world import World
from longshore_runtime.data.tokenizer import require_same_tokens
from longshore_runtime.errors import UserError
from longshore_runtime.judge.options import RemoteJudgeOptions
from longshore_runtime.judge.teacher import RemoteTeacher
from longshore_runtime.trajectories.trajectory import Trajectory
from tests.contract.judge.teacher_server import TeacherServer
from tests.contract.trainers.plans import (
    BATCHES,
    SOME_CLIPPED,
    Named,
    apart,
    count_tokens,
    double_precision,
    megatron_gradients,
    plan,
    torch_gradients,
    train_megatron,
    train_torch,
)
from tests.contract.trainers.ranks import kept_ranks
from tests.contract.trainers.replicas import LORA, OPTIONS, make_samples, with_masks

SAMPLES = make_samples()
OBJECTIVE = Distillation(teacher=Teacher(path="teacher"), top_tokens=0)
ALONE = replace(OPTIONS, objective=OBJECTIVE, kl_coefficient=0.0, learning_rate=1e-3, warmup_steps=0, temperature=1.0)


@pytest.mark.parametrize("kind", [TorchTrainer, MegatronTrainer])
@pytest.mark.parametrize("reward_weight", [0.0, 0.5])
def test_the_gradient_is_that_of_the_reverse_kl_divergence_and_of_rewards(
    kind: Any, reward_weight: float, model: Path, tmp_path: Path
) -> None:
    """Tokens that the student samples have ratio 1; their advantage is what the teacher says of them."""
    build_tiny_model(tmp_path / "teacher", seed=7, hidden_size=64, num_hidden_layers=1)
    options = replace(ALONE, objective=OBJECTIVE.model_copy(update={"reward_weight": reward_weight}))
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


@dataclass(frozen=True)
class Lesson:
    """A student, a teacher whose output layer has more rows, and options that compare them at `top_tokens` tokens."""

    student: Path
    teacher: Path
    top_tokens: int

    @property
    def options(self) -> TrainerOptions:
        objective = Distillation(teacher=Teacher(path="teacher"), top_tokens=self.top_tokens, reward_weight=0.5)
        return replace(SOME_CLIPPED, objective=objective, kl_coefficient=0.0)

    def plain_gradients(self) -> Named:
        """Gradients of the first batch in double precision, from whole distributions."""
        student, teacher = (
            AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).double()
            for path in (self.student, self.teacher)
        )
        with double_precision():
            loss = torch.stack([self._loss(student, teacher, sample) for sample in BATCHES[0]]).sum()
            torch.autograd.backward(loss / count_tokens(BATCHES[0]))
        return {name: parameter.grad.numpy() for name, parameter in student.named_parameters()}

    def _loss(self, student: Any, teacher: Any, sample: Sample) -> Tensor:
        def distributions(model: Any) -> Tensor:
            tokens = torch.tensor([[*sample.prompt_tokens, *sample.trajectory.tokens]])
            before = slice(len(sample.prompt_tokens) - 1, -1)
            return torch.log_softmax(model(tokens).logits[0, before] / self.options.temperature, dim=-1)

        own, taught = distributions(student), distributions(teacher).detach()[:, : student.config.vocab_size]
        lost = taught.exp() * (taught - own)
        least = taught.sort(descending=True).values[:, : self.top_tokens][:, -1:]
        sampled = torch.tensor(sample.trajectory.tokens).long().unsqueeze(1)
        ratio = (own.gather(1, sampled).squeeze(1) - torch.tensor(sample.trajectory.log_probs)).exp()
        gain = torch.minimum(ratio * sample.advantage, ratio.clip(0.8, 1.2) * sample.advantage)
        return lost[taught >= least].sum() - gain.sum()


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("teacher")
    build_tiny_model(directory, seed=7, hidden_size=64, num_hidden_layers=2, vocab_size=150, initializer_range=0.3)
    return directory


@pytest.mark.parametrize("top_tokens", [5, 1024], ids=["some", "all"])
@pytest.mark.parametrize(
    ("train", "sizes"),
    [
        (train_torch, ParallelSizes()),
        (train_torch, ParallelSizes(fsdp=2)),
        (train_megatron, ParallelSizes(tensor=2)),
        (train_megatron, ParallelSizes(context=2)),
        pytest.param(train_megatron, ParallelSizes(pipeline=2), marks=pytest.mark.soak),
    ],
    ids=["torch", "FSDP2", "TP2", "CP2", "PP2"],
)
def test_the_gradient_is_that_of_the_divergence_over_the_likeliest_tokens(
    train: Any, sizes: ParallelSizes, top_tokens: int, model: Path, teacher: Path
) -> None:
    lesson = Lesson(model, teacher, top_tokens)
    arguments = (model, plan(1, seed=4)[:1], True, sizes, lesson.options, teacher)
    trained = train(World(), *arguments) if sizes == ParallelSizes() else kept_ranks(2).run(train, *arguments)[0]
    assert apart(trained.gradients, lesson.plain_gradients()) < 1e-8


def test_an_adapter_and_an_offloaded_teacher_change_no_loss(model: Path, teacher: Path) -> None:
    options = Lesson(model, teacher, 5).options
    losses = [
        TorchTrainer(model, one, reference=teacher).accumulate(BATCHES[0])
        for one in (options, replace(options, lora=LORA), replace(options, offload_reference=True))
    ]
    assert losses[0].loss == pytest.approx(losses[1].loss, rel=1e-5) == pytest.approx(losses[2].loss, rel=1e-6)
    assert losses[0].kl > 0


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
