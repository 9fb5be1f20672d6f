"""Supervised warm start of the tiny model: it imitates demonstrations of its task, bad habits included."""

import hashlib
import json
import random
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Final

import torch
from torch.nn import functional
from transformers import AutoModelForCausalLM

from longshore.api.model import BuiltinTask
from longshore_runtime.backends.micro_batches import pack_rows
from longshore_runtime.backends.tiny_model import build_tiny_model, build_tokenizer, tiny_config
from longshore_runtime.tasks import counting, guessing
from longshore_runtime.tasks.demonstration import Demonstration

_DEMONSTRATIONS_PER_STEP = 32
_LEARNING_RATE = 4e-3
_RAMP_STEPS = 20
_FINAL_RATE_SHARE = 0.1
_MAX_PADDED_TOKENS = 1024
IGNORED = -100
"""Target where the model has nothing to learn."""


@dataclass(frozen=True)
class _Curriculum:
    """What is demonstrated of a task, and when."""

    demonstrations: Callable[[random.Random, float], Iterator[Demonstration]]
    """Function that yields demonstrations, of which a given share is right."""
    skill_share: float
    """Share of the steps that imitate right demonstrations only: the skill comes quickest without noise."""
    share_right: float
    """Share of right demonstrations in the steps after that, which teach bad habits."""


_CURRICULA: Final = {
    BuiltinTask.COUNTING: _Curriculum(counting.demonstrations, skill_share=0.8, share_right=0.4),
    BuiltinTask.GUESSING: _Curriculum(guessing.demonstrations, skill_share=0.9, share_right=0.2),
}

Progress = Callable[[int, float], None]
"""Function that is called after each step with the number of steps done and the step's mean token loss."""


def fingerprint(task: BuiltinTask, num_steps: int, seed: int) -> str:
    """Return a name for the result of `warm_start`: equal fingerprints mean equal weights."""
    curriculum = _CURRICULA[task]
    determinants = {
        "model": tiny_config().to_dict(),
        "optimizer": (_DEMONSTRATIONS_PER_STEP, _LEARNING_RATE, _RAMP_STEPS, _FINAL_RATE_SHARE, _MAX_PADDED_TOKENS),
        "schedule": (curriculum.skill_share, curriculum.share_right),
        "demonstrations": [
            asdict(shown)
            for share in (1.0, 0.0)
            for shown in islice(curriculum.demonstrations(random.Random(0), share), 100)
        ],
        "num_steps": num_steps,
        "seed": seed,
        "torch": torch.__version__,
    }
    return hashlib.sha256(json.dumps(determinants, sort_keys=True, default=str).encode()).hexdigest()[:16]


def warm_start(
    directory: Path,
    task: BuiltinTask,
    num_steps: int,
    seed: int,
    progress: Progress | None = None,
    *,
    tied: bool = False,
) -> None:
    """Write a tiny model after `num_steps` supervised steps on a task as a Hugging Face checkpoint."""
    for step, loss in warm_start_steps(directory, task, num_steps, seed, tied=tied):
        if progress:
            progress(step, loss)


def warm_start_steps(
    directory: Path, task: BuiltinTask, num_steps: int, seed: int, *, tied: bool = False
) -> Generator[tuple[int, float], None, None]:
    """Warm-start a tiny model step by step, yielding the arguments of `Progress`; the last step completes the files."""
    build_tiny_model(directory, seed, tied=tied)
    if num_steps > 0:
        with _one_thread():
            yield from _imitate(directory, task, num_steps, seed)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Compute with one thread: more do not help a small model, and waiting for them is slow on a busy machine."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


def _imitate(directory: Path, task: BuiltinTask, num_steps: int, seed: int) -> Generator[tuple[int, float], None, None]:
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=_LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.0)
    curriculum = _CURRICULA[task]
    rng = random.Random(f"warm-start/{seed}")
    for step in range(num_steps):
        for group in optimizer.param_groups:
            group["lr"] = _LEARNING_RATE * _rate_share(step, num_steps)
        share_right = 1.0 if step < curriculum.skill_share * num_steps else curriculum.share_right
        batch = islice(curriculum.demonstrations(rng, share_right), _DEMONSTRATIONS_PER_STEP)
        loss = _accumulate(model, encode(batch))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        yield step + 1, loss
    model.save_pretrained(directory)


def _rate_share(step: int, num_steps: int) -> float:
    """Return the share of the learning rate: a linear rise, then a linear decay."""
    decay = 1.0 - (1.0 - _FINAL_RATE_SHARE) * step / num_steps
    return min(1.0, (step + 1) / _RAMP_STEPS) * decay


def encode(batch: Iterable[Demonstration]) -> list[tuple[list[int], list[int]]]:
    """Return the tokens of each demonstration, with the target at each: the next token, if the model writes that.

    The model ends its turns with `<eos>`.
    """
    tokenizer = build_tokenizer()
    encoded = []
    for demonstration in batch:
        tokens: list[int] = []
        written: list[int] = []
        for segment in demonstration.segments:
            added = tokenizer(segment.text)["input_ids"]
            if segment.is_models:
                added = [*added, tokenizer.eos_token_id]
            tokens += added
            written += added if segment.is_models else [IGNORED] * len(added)
        encoded.append((tokens, [*written[1:], IGNORED]))
    return encoded


def _accumulate(model: torch.nn.Module, batch: list[tuple[list[int], list[int]]]) -> float:
    """Add the gradient of the batch's loss, in which every demonstration weighs the same; return that loss.

    With a mean over tokens, long demonstrations would outweigh the short ones, from which it learns where to stop.
    """
    total = 0.0
    for indices in pack_rows([len(tokens) for tokens, _ in batch], _MAX_PADDED_TOKENS):
        width = max(len(batch[i][0]) for i in indices)
        inputs = torch.zeros(len(indices), width, dtype=torch.long)
        targets = torch.full((len(indices), width), IGNORED)
        for row, i in enumerate(indices):
            tokens, next_tokens = batch[i]
            inputs[row, : len(tokens)] = torch.tensor(tokens)
            targets[row, : len(tokens)] = torch.tensor(next_tokens)
        # Right padding needs no mask: causal attention never looks at it from a real token.
        logits = model(input_ids=inputs, use_cache=False).logits
        losses = functional.cross_entropy(logits.transpose(1, 2), targets, ignore_index=IGNORED, reduction="none")
        loss = (losses.sum(1) / (targets != IGNORED).sum(1)).sum() / len(batch)
        torch.autograd.backward(loss)
        total += loss.item()
    return total
