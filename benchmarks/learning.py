"""Does it learn? Warm start, then GRPO on the built-in task, in one process, for several seeds.

Prints held-out reward before and after, overall and on the longest quartile of prompts; the last line is one JSON
object. Run: `python -m benchmarks.learning --seeds 0 1 2`.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from transformers import AutoTokenizer

from longshore.api.rollout import Engine as EngineOptions
from longshore.api.rollout import Rollout, Strategy
from longshore.policy.advantages import group_advantages
from longshore.policy.draws import Draw, DrawCursor
from longshore.policy.presets import round_policy
from longshore.policy.round import Decision, ResponseFinished, ResponseId
from longshore.policy.round_policy import BatchShape, RoundPolicy
from longshore_runtime.backends.engine_spec import EngineSpec
from longshore_runtime.backends.engines import create_engine
from longshore_runtime.backends.torch_trainer import TorchTrainer
from longshore_runtime.backends.warm_start import warm_start
from longshore_runtime.tasks import counting
from longshore_runtime.types import Completion, Engine, Request, Sample, TrainerOptions

MAX_CONTEXT_TOKENS = 512
ADVANTAGE_EPSILON = 1e-6


@dataclass(frozen=True)
class Recipe:
    """What is run; the defaults are those of the quickstart."""

    strategy: Strategy = Strategy.TAIL_BATCHING
    warm_start_steps: int = 300
    steps: int = 60
    prompts_per_step: int = 32
    responses_per_prompt: int = 8
    learning_rate: float = 5e-4
    warmup_steps: int = 5
    max_response_tokens: int = 400
    num_prompts: int = 4096
    held_out_prompts: int = 64
    held_out_responses: int = 4

    def trainer_options(self, seed: int) -> TrainerOptions:
        """Options of the trainer."""
        return TrainerOptions(
            learning_rate=self.learning_rate,
            warmup_steps=self.warmup_steps,
            weight_decay=0.0,
            max_grad_norm=1.0,
            clip_low=0.2,
            clip_high=0.2,
            kl_coefficient=0.0,
            temperature=1.0,
            max_tokens_per_micro_batch=2048,
            seed=seed,
        )


@dataclass(frozen=True)
class HeldOut:
    """Mean held-out reward: of all prompts, and of the longest quarter of them."""

    reward: float
    longest_quartile: float


@dataclass(frozen=True)
class Outcome:
    """One seed."""

    seed: int
    before: HeldOut
    after: HeldOut
    warm_start_s: float
    rollout_s: float
    train_s: float
    trained_tokens: int


class Run:
    """One seed: engine, trainer and round policy in this process."""

    def __init__(self, recipe: Recipe, seed: int, directory: Path) -> None:
        self._recipe, self._seed = recipe, seed
        started_s = time.monotonic()
        warm_start(directory, recipe.warm_start_steps, seed)
        self._warm_start_s = time.monotonic() - started_s
        self._tokenizer = AutoTokenizer.from_pretrained(directory)
        self._trainer = TorchTrainer(directory, recipe.trainer_options(seed))
        options = EngineOptions(enforce_eager=True, kv_cache="128Mi")
        self._engine: Engine = create_engine(EngineSpec(options, MAX_CONTEXT_TOKENS, seed), directory)
        self._rows = counting.generate(recipe.num_prompts, seed)
        shape = BatchShape(recipe.prompts_per_step, recipe.responses_per_prompt)
        cursor = DrawCursor(len(self._rows), seed)
        self._policy: RoundPolicy = round_policy(Rollout(strategy=recipe.strategy), shape, cursor)
        self._rollout_s = self._train_s = 0.0
        self._trained_tokens = 0

    def outcome(self) -> Outcome:
        """Train, and score held-out prompts before and after."""
        self._publish(0)
        before = self._evaluate()
        for step in range(1, self._recipe.steps + 1):
            started_s = time.monotonic()
            samples = self._rollout(step)
            rolled_out_s = time.monotonic()
            sums = self._trainer.accumulate(samples)
            self._publish(self._trainer.update(sums.num_tokens).policy_version)
            self._rollout_s += rolled_out_s - started_s
            self._train_s += time.monotonic() - rolled_out_s
            self._trained_tokens += sums.num_tokens
            if step % 10 == 0:
                reward = fmean(sample.reward for sample in samples)
                print(
                    f"seed {self._seed} step {step}: reward {reward:.3f}, mismatch {sums.mismatch_max:.1e}", flush=True
                )
        return Outcome(
            seed=self._seed,
            before=before,
            after=self._evaluate(),
            warm_start_s=round(self._warm_start_s, 1),
            rollout_s=round(self._rollout_s, 1),
            train_s=round(self._train_s, 1),
            trained_tokens=self._trained_tokens,
        )

    def _publish(self, policy_version: int) -> None:
        self._engine.load_weights(self._trainer.weights(), policy_version)

    def _rollout(self, step: int) -> list[Sample]:
        """One round as the policy decides; returns its batch."""
        ids: dict[str, ResponseId] = {}
        ended: dict[ResponseId, Completion] = {}
        self._execute(self._policy.start_round().decision, step, ids)
        while self._engine.has_work():
            completions = self._engine.step()
            ended.update({ids[completion.request_id]: completion for completion in completions})
            finished = [ResponseFinished(ids[c.request_id], c.engine_step) for c in completions]
            self._execute(self._policy.responses_finished(finished), step, ids)
        samples: list[Sample] = []
        for group in self._policy.end_round().accepted:
            samples += self._samples(group.draw, [ended[ResponseId(group.draw, index)] for index in group.responses])
        return samples

    def _execute(self, decision: Decision, step: int, ids: dict[str, ResponseId]) -> None:
        ids.update({str(response): response for response in decision.launch})
        self._engine.abort([str(response) for response in decision.abort])
        self._engine.add(
            [
                self._request(str(response), self._rows[response.draw.index].prompt, f"{step}/{response}")
                for response in decision.launch
            ]
        )

    def _samples(self, draw: Draw, completions: Sequence[Completion]) -> list[Sample]:
        row = self._rows[draw.index]
        rewards = [self._score(completion, row) for completion in completions]
        prompt = tuple(self._tokenizer.encode(row.prompt))
        return [
            Sample(draw, index, prompt, completion.tokens, completion.log_probs, advantage, reward)
            for index, (completion, advantage, reward) in enumerate(
                zip(completions, group_advantages(rewards, ADVANTAGE_EPSILON), rewards, strict=True)
            )
        ]

    def _evaluate(self) -> HeldOut:
        """Mean reward of held-out prompts, sampled at the training temperature."""
        rows = counting.held_out(self._recipe.held_out_prompts, self._seed)
        by_request = {
            f"held-out-{n}-{k}": row for n, row in enumerate(rows) for k in range(self._recipe.held_out_responses)
        }
        self._engine.add([self._request(name, row.prompt, name) for name, row in by_request.items()])
        rewards: dict[str, float] = {}
        while self._engine.has_work():
            rewards.update({c.request_id: self._score(c, by_request[c.request_id]) for c in self._engine.step()})
        ordered = [rewards[name] for name in by_request]
        return HeldOut(round(fmean(ordered), 3), round(fmean(ordered[-len(ordered) // 4 :]), 3))

    def _score(self, completion: Completion, row: counting.CountingRow) -> float:
        return counting.score(self._tokenizer.decode(completion.tokens, skip_special_tokens=True), row.answer)

    def _request(self, name: str, prompt: str, seed_text: str) -> Request:
        seed = abs(hash((self._seed, *seed_text.encode()))) % 2**31  # Hashes of numbers do not vary between processes.
        tokens = tuple(self._tokenizer.encode(prompt))
        return Request(name, tokens, self._recipe.max_response_tokens, temperature=1.0, seed=seed)


def main() -> None:
    """Run the seeds and print what came of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    for name, default in asdict(Recipe()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    arguments: dict[str, Any] = vars(parser.parse_args())
    seeds = arguments.pop("seeds")
    recipe = replace(Recipe(), **arguments)
    torch.set_num_threads(1)
    outcomes = []
    for seed in seeds:
        with tempfile.TemporaryDirectory() as directory:
            outcome = Run(recipe, seed, Path(directory)).outcome()
        print(f"seed {seed}: held-out reward {outcome.before} -> {outcome.after}", flush=True)
        outcomes.append(asdict(outcome))
    print(json.dumps({"recipe": asdict(recipe), "outcomes": outcomes}))


if __name__ == "__main__":
    main()
