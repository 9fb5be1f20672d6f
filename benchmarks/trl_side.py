"""Run TRL's side of `make bench NAME=trl`: GRPOTrainer on a given task, in an environment of its own.

Reads a task (`benchmarks.trl_task`) and writes what each step took, what it trained, and the held-out rewards. All that
it imports of Longshore is the score of Counting.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.process_tree import cpu_s
from benchmarks.trl_reward import distinct


def main(task_file: str, result_file: str) -> None:
    """Train on the task; of several processes, the first one writes the result."""
    begun_s = time.monotonic()
    task = json.loads(Path(task_file).read_text(encoding="utf-8"))

    from datasets import Dataset
    from torch.optim.lr_scheduler import LambdaLR

    from longshore_runtime.tasks import counting
    from trl import GRPOConfig, GRPOTrainer

    def count(completions: list[str], answer: list[str], **_: Any) -> list[float]:
        return [counting.score(*pair) for pair in zip(completions, answer, strict=True)]

    class Trainer(GRPOTrainer):  # type: ignore[misc]
        """Trainer with the task's learning rates: TRL's warm-up begins at zero, and Longshore's one update later."""

        def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
            rates = task["learning_rates"]
            self.lr_scheduler = LambdaLR(
                optimizer or self.optimizer,
                lambda update: rates[min(update, len(rates) - 1)] / self.args.learning_rate,
            )
            return self.lr_scheduler

    trainer = Trainer(
        model=task["model"],
        reward_funcs={"task": count, "distinct": distinct}[task["reward"]],
        args=GRPOConfig(output_dir=str(Path(result_file).with_suffix("")), **task["settings"]),
        train_dataset=Dataset.from_list(task["train"]),
        eval_dataset=Dataset.from_list(task["held_out"]),
    )
    if trainer.use_vllm:
        _publish_by_layer(trainer.vllm_generation)
    root = os.getppid() if "TORCHELASTIC_RUN_ID" in os.environ else os.getpid()
    steps, evaluations = _watch(trainer, root, task["evaluate_every_steps"])
    trainer.train()
    if trainer.accelerator.is_main_process:
        whole = {"whole_s": time.monotonic() - begun_s, "whole_cpu_s": cpu_s(root)}
        Path(result_file).write_text(json.dumps({**whole, "steps": steps, "evaluations": evaluations}))


def _publish_by_layer(generation: Any) -> None:
    """Replace the way in which TRL gives vLLM new weights, which fails on a CPU.

    vLLM packs weights there when they are loaded, and removes the parameters that TRL's way writes to. This is vLLM's
    own way to load a running model again.
    """
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

    def sync_weights() -> None:
        runner = generation.llm.llm_engine.model_executor.driver_worker.model_runner
        with set_current_vllm_config(runner.vllm_config):
            initialize_layerwise_reload(runner.model)
            runner.model.load_weights(generation._iter_named_params())
            finalize_layerwise_reload(runner.model, runner.vllm_config.model_config)
        generation.llm.reset_prefix_cache()

    generation.sync_weights = sync_weights


def _watch(trainer: Any, root: int, every_steps: int) -> tuple[list[dict[str, float]], list[dict[str, float]]]:
    """Collect what each step takes and trains, and held-out rewards before the first step and every so many."""
    from transformers import TrainerCallback

    steps: list[dict[str, float]] = []
    evaluations: list[dict[str, float]] = []

    class Watch(TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            self._evaluate()

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self._begun_cpu_s, self._begun_s = cpu_s(root), time.monotonic()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            step_s = time.monotonic() - self._begun_s
            newest = {name: values[-1] for name, values in trainer._metrics["train"].items()}
            steps.append(
                {
                    "step_s": step_s,
                    "cpu_s": cpu_s(root) - self._begun_cpu_s,
                    "tokens": round(newest["completions/mean_length"] * trainer.args.generation_batch_size),
                    "max_tokens": round(newest["completions/max_length"]),
                    "reward": newest["reward"],
                }
            )
            if len(steps) % every_steps == 0:
                self._evaluate()

        def _evaluate(self) -> None:
            evaluations.append({"step": len(steps), "reward": trainer.evaluate()["eval_reward"]})

    trainer.add_callback(Watch())
    return steps, evaluations


if __name__ == "__main__":
    main(*sys.argv[1:])
