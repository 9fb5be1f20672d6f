"""The torch trainer against a plain implementation of the same mathematics, and what its metrics say."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from longshore_runtime.backends.torch_trainer import TorchTrainer
from longshore_runtime.backends.trainer_protocol import Sample, TrainerOptions
from longshore_runtime.trainer.group import step_denominator
from tests.contract.trainers.reference_losses import Response, reference_loss
from tests.contract.trainers.replicas import (
    BUILT_IN,
    OPTIONS,
    Kind,
    make_samples,
    options_of,
    step,
    with_masks,
    with_old,
    without_kl,
)

BATCHES = [make_samples(seed=seed) for seed in range(3)]


class PlainTrainer:
    """One sample at a time, whole logits, the formulas of the papers written out."""

    def __init__(self, model: Path, options: TrainerOptions) -> None:
        self.options = options
        self.policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        self.initial = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        self.optimizer = torch.optim.AdamW(
            self.policy.parameters(),
            lr=options.learning_rate,
            betas=(options.adam_beta1, options.adam_beta2),
            eps=options.adam_epsilon,
            weight_decay=options.weight_decay,
        )

    def log_probs(self, module: torch.nn.Module, sample: Sample) -> torch.Tensor:
        tokens = torch.tensor([[*sample.prompt_tokens, *sample.trajectory.tokens]])
        logits = module(tokens).logits[0] / self.options.temperature
        everywhere = torch.log_softmax(logits, dim=-1)
        first = len(sample.prompt_tokens)
        return torch.stack([everywhere[place - 1, tokens[0, place]] for place in range(first, tokens.shape[1])])

    def response(self, sample: Sample) -> Response:
        with torch.no_grad():
            initial = self.log_probs(self.initial, sample).tolist()
        in_loss = sample.in_loss.tolist()
        new = self.log_probs(self.policy, sample)
        return Response(new, sample.trajectory.log_probs.tolist(), initial, sample.advantage, in_loss)

    def step(self, samples: list[Sample]) -> float:
        loss = reference_loss([self.response(sample) for sample in samples], self.options)
        self.optimizer.zero_grad()
        torch.autograd.backward(loss)
        norm = torch.nn.utils.clip_grad_norm_(self.policy.parameters(), self.options.max_grad_norm)
        self.optimizer.step()
        return float(norm)


@pytest.mark.parametrize(
    "options",
    [pytest.param(without_kl(), id="without KL"), *(pytest.param(options_of(name), id=name) for name in BUILT_IN)],
)
def test_three_steps_agree_with_a_plain_implementation(model: Path, options: TrainerOptions) -> None:
    trainer, plain = TorchTrainer(model, options), PlainTrainer(model, options)
    before = dict(trainer.weights())
    for batch in map(with_old, map(with_masks, BATCHES)):
        expected_norm = plain.step(batch)
        trainer.accumulate(batch)
        norm = trainer.update(step_denominator(batch, options)).grad_norm
        assert norm == pytest.approx(expected_norm, rel=1e-3)
    after = dict(trainer.weights())
    expected = {name: values.detach().numpy() for name, values in plain.policy.named_parameters()}
    moved = np.concatenate([(expected[name] - before[name]).ravel() for name in before])
    apart = np.concatenate([(expected[name] - after[name]).ravel() for name in before])
    assert np.linalg.norm(apart) < 5e-3 * np.linalg.norm(moved)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_metrics_are_zero_where_the_rollout_came_from_the_same_weights(model: Path, temperature: float) -> None:
    options = replace(OPTIONS, temperature=temperature)
    plain = PlainTrainer(model, options)
    with torch.no_grad():
        samples = [
            replace(
                sample, trajectory=replace(sample.trajectory, log_probs=plain.log_probs(plain.policy, sample).numpy())
            )
            for sample in BATCHES[0]
        ]
    sums = TorchTrainer(model, options).accumulate(samples)
    assert sums.mismatch_max < 1e-4
    assert sums.clipped == 0.0
    assert sums.kl == pytest.approx(0.0, abs=1e-5)
    assert sums.policy_loss == pytest.approx(
        -sum(sample.advantage * sample.num_response_tokens for sample in samples), rel=1e-3
    )
    assert sums.entropy / sums.num_tokens == pytest.approx(np.log(128), rel=0.05), "an untrained model knows nothing"


def test_a_saved_checkpoint_opens_in_transformers_with_its_tokenizer(model: Path, tmp_path: Path) -> None:
    trainer = TorchTrainer(model, OPTIONS)
    outcome = step(trainer, [BATCHES[0]])
    trainer.begin_save(tmp_path)()
    opened = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    for name, values in opened.named_parameters():
        assert np.array_equal(values.detach().numpy(), outcome.weights[name])
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer.decode(tokenizer.encode("k5: k4")) == "k5: k4"
    assert tokenizer.apply_chat_template([{"role": "user", "content": "k5:"}], tokenize=False) == "k5:"


def test_a_checkpoint_that_was_loaded_is_not_mapped_any_more(model: Path, tmp_path: Path) -> None:
    """Otherwise deleting it frees no room."""
    trainer = TorchTrainer(model, OPTIONS)
    step(trainer, [BATCHES[0]])
    trainer.begin_save(tmp_path)()
    resumed = TorchTrainer(model, OPTIONS)
    resumed.load(tmp_path)
    step(resumed, [BATCHES[1]])
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()


def test_a_directory_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises((OSError, ValueError)):
        Kind("torch", tmp_path).start()
