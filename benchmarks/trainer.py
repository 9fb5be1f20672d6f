"""Measure what a pass of the trainer costs per token of prompt and response.

Every side makes the gradients of the same responses, with lengths that spread as those of a job do, on one thread:

- `longshore`: the torch trainer as it is, whose micro-batches are packed;
- `recompute/…`: the same with parts of its layers computed again;
- `torch.compile`: the same with compiled layers, once they are;
- `transformers, rows`: the model alone, with padded rows of up to 16,384 tokens and all logits of the responses;
- `transformers, one`: the same, one response at a time, which pads nothing;
- `TRL`: the loss of TRL's GRPOTrainer in float32, eight responses at a time, padded to the longest of all.

`ms_per_token` is processor time. `ratios` compare it with that of `longshore`: above 1, Longshore takes less.
`of_gemm` is the rate at which a side does the products that a token needs (6 for each parameter of a layer and of the
output layer), relative to a large product of matrices that is measured beside each run.
"""

import argparse
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
import torch

from benchmarks.report import report, spreads
from benchmarks.trl_task import ROOT, TRL_PYTHON
from longshore.api.algorithm import Algorithm
from longshore.api.training import Recompute, TrainerSettings
from longshore.policy.draws import Draw
from longshore_runtime.backends.pretrained import load_pretrained
from longshore_runtime.backends.tiny_model import build_tiny_model
from longshore_runtime.backends.torch_trainer import TorchTrainer
from longshore_runtime.backends.trainer_protocol import Sample
from longshore_runtime.backends.trainer_spec import TrainerSpec
from longshore_runtime.backends.vllm_environment import has_compiler
from longshore_runtime.trajectories.trajectory import TokenIds, Trajectory, token_ids

PROMPT_TOKENS: Final = 32
ROW_TOKENS: Final = 16_384
GEMM_TOKENS: Final = 1024
GEMM_S: Final = 0.5
"""Processor time of a measurement of the rate of products."""

Side = Callable[[], float]
"""Function that makes a pass over all responses, and returns the processor time that it took."""


def main() -> int:
    """Alternate between the sides; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="Hugging Face directory; unset: the built-in tiny model")
    parser.add_argument("--responses", type=int, default=32)
    parser.add_argument("--mean-tokens", type=int, default=64, help="median length of a response")
    parser.add_argument("--alternations", type=int, default=3)
    given = parser.parse_args()
    if not TRL_PYTHON.exists():
        print("trainer: TRL is not installed: run `make bench NAME=trainer`, which installs it", file=sys.stderr)
        return 2
    torch.set_num_threads(1)
    with TemporaryDirectory(prefix="ls-trainer-") as directory:
        model = given.model or Path(directory)
        if given.model is None:
            build_tiny_model(model, seed=0)
        samples = responses(model, given.responses, given.mean_tokens)
        num_tokens = sum(sample.num_tokens for sample in samples)
        with trl_side(model, samples, Path(directory)) as trl:
            sides = sides_of(model, samples) | {"TRL": trl}
            runs = alternate(sides, num_tokens, *products(model), given.alternations)
    costs: dict[str, list[float]] = defaultdict(list)
    for run in runs:
        costs[run["side"]].append(run["ms_per_token"])
    ratios = {
        side: [theirs / ours for theirs, ours in zip(values, costs["longshore"], strict=True)]
        for side, values in costs.items()
    }
    settings = {"model": given.model.name if given.model else "tiny", "tokens": num_tokens}
    shares = {side: median(run["of_gemm"] for run in runs if run["side"] == side) for side in costs}
    report("trainer", ratios, settings, runs, figures=spreads(costs), of_gemm=shares)
    return 0


def responses(model: Path, count: int, median_tokens: int) -> list[Sample]:
    """Return responses whose lengths are log-normal, the longest at most four times the median."""
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(np.log(median_tokens), 0.6, count), 4, 4 * median_tokens).astype(int)
    vocab_size = load_pretrained(model, torch.float32).config.vocab_size

    def some(num_tokens: int) -> TokenIds:
        return token_ids(rng.integers(4, vocab_size, num_tokens))

    return [
        Sample(
            draw=Draw(0, index),
            index=0,
            prompt_tokens=some(PROMPT_TOKENS),
            trajectory=Trajectory.sampled(0, some(length), np.full(length, -np.log(vocab_size))),
            advantage=(-1.0) ** index,
            reward=0.0,
        )
        for index, length in enumerate(lengths.tolist())
    ]


def sides_of(model: Path, samples: Sequence[Sample]) -> dict[str, Side]:
    """Return what makes the gradients of each side of this process, by its name."""
    plain = load_pretrained(model, torch.float32).train()
    passes: dict[str, Callable[[Sequence[Sample]], object]] = {"longshore": trainer(model, Recompute.NONE).accumulate}
    for way in (Recompute.SELECTIVE, Recompute.FULL):
        passes[f"recompute/{way}"] = trainer(model, way).accumulate
    if has_compiler():
        passes["torch.compile"] = trainer(model, Recompute.NONE, torch_compile=True).accumulate
    passes["transformers, rows"] = lambda given: plain_pass(plain, given, ROW_TOKENS)
    passes["transformers, one"] = lambda given: plain_pass(plain, given, 1)

    def timed(make: Callable[[Sequence[Sample]], object]) -> Side:
        def side() -> float:
            started_s = time.process_time()
            make(samples)
            return time.process_time() - started_s

        return side

    return {name: timed(make) for name, make in passes.items()}


@contextmanager
def trl_side(model: Path, samples: Sequence[Sample], directory: Path) -> Iterator[Side]:
    """Start TRL in its own environment (see `trl_pass`), and yield what has it make a pass."""
    longest = max(sample.num_response_tokens for sample in samples)
    completions = np.zeros((len(samples), longest), np.int64)
    mask = np.zeros_like(completions)
    for row, sample in enumerate(samples):
        completions[row, : sample.num_response_tokens] = sample.trajectory.tokens
        mask[row, : sample.num_response_tokens] = 1
    prompts = np.stack([sample.prompt_tokens for sample in samples]).astype(np.int64)
    stored = directory / "trl.npz"
    np.savez(
        stored,
        prompt_ids=prompts,
        prompt_mask=np.ones_like(prompts),
        completion_ids=completions,
        completion_mask=mask,
        advantages=np.array([sample.advantage for sample in samples], np.float32),
    )
    command = [str(TRL_PYTHON), "-m", "benchmarks.trl_pass", str(model.absolute()), str(stored)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdin is not None and process.stdout is not None
        answers = process.stdout
        while (line := answers.readline()) and line != "ready\n":  # What TRL prints when it starts.
            pass

        def side() -> float:
            print(file=process.stdin, flush=True)
            if not (line := answers.readline()):
                raise RuntimeError("TRL has ended")
            return float(line)

        yield side


def trainer(model: Path, recompute: Recompute, *, torch_compile: bool = False) -> TorchTrainer:
    """Return a trainer with the defaults of a job, without a KL penalty."""
    algorithm = Algorithm(steps=1, prompts_per_step=1, responses_per_prompt=2, max_response_tokens=1024)
    settings = TrainerSettings(recompute=recompute, torch_compile=torch_compile)
    spec = TrainerSpec.of(algorithm, settings, 1, is_colocated=False)
    return TorchTrainer(model, spec.options)


def plain_pass(model: Any, samples: Sequence[Sample], max_padded_tokens: int) -> None:
    """Make the gradients of a policy-gradient loss as one writes it with transformers alone."""
    model.zero_grad(set_to_none=True)
    for batch in padded_batches(samples, max_padded_tokens):
        rows = [torch.from_numpy(np.concatenate((one.prompt_tokens, one.trajectory.tokens))).long() for one in batch]
        tokens = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        kept = tokens.shape[1] - PROMPT_TOKENS
        logits = model(input_ids=tokens, use_cache=False, logits_to_keep=kept + 1).logits[:, :-1]
        log_probs = torch.log_softmax(logits, -1).gather(-1, tokens[:, -kept:].unsqueeze(-1)).squeeze(-1)
        lengths = torch.tensor([one.num_response_tokens for one in batch])
        mask = torch.arange(kept) < lengths.unsqueeze(1)
        advantages = torch.tensor([one.advantage for one in batch]).unsqueeze(1)
        torch.autograd.backward(-(torch.exp(log_probs - log_probs.detach()) * advantages)[mask].sum())


def padded_batches(samples: Sequence[Sample], max_padded_tokens: int) -> list[list[Sample]]:
    """Return batches of samples of similar length, the longest first; a batch has at least one."""
    batches: list[list[Sample]] = []
    for sample in sorted(samples, key=lambda one: -one.num_tokens):
        if batches and batches[-1][0].num_tokens * (len(batches[-1]) + 1) <= max_padded_tokens:
            batches[-1].append(sample)
        else:
            batches.append([sample])
    return batches


def products(model: Path) -> tuple[int, tuple[int, int]]:
    """Return the operations that a token needs, and the sizes of a product as its layers make it."""
    config = load_pretrained(model, torch.float32).config
    module = load_pretrained(model, torch.float32)
    embedding = module.get_input_embeddings().weight
    inside = sum(p.numel() for p in module.base_model.parameters()) - embedding.numel()
    return 6 * (inside + embedding.numel()), (config.hidden_size, config.intermediate_size)


def alternate(
    sides: dict[str, Side],
    num_tokens: int,
    operations: int,
    sizes: tuple[int, int],
    alternations: int,
) -> list[dict[str, Any]]:
    """Measure every side in turn; the first round, in which memory is allocated, does not count."""
    runs = []
    for number in range(alternations + 1):
        for name, side in sides.items():
            rate = gemm_rate(*sizes)
            per_token_s = side() / num_tokens
            if number:
                share = round(operations / per_token_s / rate, 3)
                runs.append({"side": name, "ms_per_token": round(1e3 * per_token_s, 4), "of_gemm": share})
                print(runs[-1], file=sys.stderr, flush=True)
    return runs


def gemm_rate(rows: int, columns: int) -> float:
    """Return the operations of a product of matrices, by second of processor time."""
    left, right = torch.randn(GEMM_TOKENS, rows), torch.randn(columns, rows)
    count, started_s = 0, time.process_time()
    while time.process_time() - started_s < GEMM_S:
        torch.nn.functional.linear(left, right)
        count += 1
    return 2 * GEMM_TOKENS * rows * columns * count / (time.process_time() - started_s)


if __name__ == "__main__":
    raise SystemExit(main())
