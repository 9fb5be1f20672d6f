"""What transformers makes of a response: the numbers that an engine must give."""

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from longshore_runtime.types import Completion, Weights


def reference_log_probs(
    model: Path, weights: Weights, prompt: Sequence[int], completion: Completion, temperature: float
) -> list[float]:
    """Log-probabilities of a response according to transformers."""
    reference = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    reference.load_state_dict({name: torch.tensor(values) for name, values in weights.items()}, strict=False)
    tokens = torch.tensor([[*prompt, *completion.tokens]])
    with torch.no_grad():
        log_probs = (reference(tokens).logits[0, :-1] / temperature).log_softmax(-1)
    chosen = log_probs.gather(-1, tokens[0, 1:, None])[len(prompt) - 1 :, 0]
    return [float(value) for value in chosen]
