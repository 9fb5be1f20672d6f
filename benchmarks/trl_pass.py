"""Make the gradients of TRL's GRPOTrainer on given responses, in an environment of its own, for `benchmarks.trainer`.

Reads a line for each pass, and writes the processor time that it took. Responses are padded as TRL pads those of a
step: to the longest of all.
"""

import sys
import time
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

ROWS = 8
"""Responses of a micro-batch, TRL's default."""


def main(model: str, samples_file: str) -> None:
    """Make passes until standard input ends."""
    import torch
    from datasets import Dataset

    from trl import GRPOConfig, GRPOTrainer

    def no_reward(completions: list[str], **_: Any) -> list[float]:
        return [0.0] * len(completions)

    torch.set_num_threads(1)
    with TemporaryDirectory(prefix="ls-trl-") as directory:
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=no_reward,
            args=GRPOConfig(
                output_dir=directory,
                per_device_train_batch_size=ROWS,
                use_cpu=True,
                bf16=False,
                gradient_checkpointing=False,
                model_init_kwargs={"dtype": "float32"},
                report_to="none",
            ),
            train_dataset=Dataset.from_list([{"prompt": "0"}] * ROWS),
        )
        with np.load(samples_file) as stored:
            inputs = {name: torch.from_numpy(stored[name]) for name in stored.files}
        num_tokens = inputs["completion_mask"].sum()
        trainer.current_gradient_accumulation_steps = trainer.args.steps_per_generation  # As its loop sets it.
        module = trainer.model.train()
        print("ready", flush=True)
        for _ in sys.stdin:
            started_s = time.process_time()
            module.zero_grad(set_to_none=True)
            for first in range(0, len(inputs["advantages"]), ROWS):
                rows = {name: values[first : first + ROWS] for name, values in inputs.items()}
                trainer.compute_loss(module, rows | {"num_items_in_batch": num_tokens}).backward()
            print(time.process_time() - started_s, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
