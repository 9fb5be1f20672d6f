"""What transformers makes of a response: the numbers that an engine must give."""

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.numpy import load_file, save_file
from transformers import AutoModelForCausalLM

from longshore_runtime.backends.engine_protocol import Completion
from longshore_runtime.weights.slices import Weights


class Reference:
    """Plain transformers on a checkpoint, in fp32."""

    def __init__(self, model: Path) -> None:
        self._directory = model
        self._model = _opened(model)
        tensors = {name: values for file in model.glob("*.safetensors") for name, values in load_file(file).items()}
        num_layers = self._model.config.num_hidden_layers
        self._files = {name: values for name, values in tensors.items() if f".layers.{num_layers}." not in name}
        self.has_their_names = all(name in self._files for name, _ in self._model.named_parameters())
        """Whether parameters are named as the files name them, and not fused."""

    @property
    def weights(self) -> Weights:
        """As trainers publish them: those that are tied once."""
        if not self.has_their_names:
            return self._files
        return {name: values.detach().numpy().copy() for name, values in self._model.named_parameters()}

    @torch.no_grad()
    def log_probs(
        self, weights: Weights, prompt: Sequence[int], completion: Completion, temperature: float = 1.0
    ) -> list[float]:
        """Log-probabilities of the tokens of a response, with these weights in place of those that the model had."""
        self._take(weights)
        tokens = torch.tensor([[*prompt, *completion.trajectory.tokens.tolist()]])
        log_probs = (self._model(tokens).logits[0, :-1] / temperature).log_softmax(-1)
        chosen = log_probs.gather(-1, tokens[0, 1:, None])[len(prompt) - 1 :, 0]
        return [float(value) for value in chosen]

    def _take(self, weights: Weights) -> None:
        if self.has_their_names:
            self._model.load_state_dict({name: torch.tensor(values) for name, values in weights.items()}, strict=False)
        elif weights:  # Only transformers knows how it fuses them.
            with tempfile.TemporaryDirectory() as directory:
                shutil.copy(self._directory / "config.json", directory)
                save_file(dict(weights), Path(directory) / "model.safetensors", metadata={"format": "pt"})
                self._model = _opened(Path(directory))


def _opened(model: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()


def reference_log_probs(
    model: Path, weights: Weights, prompt: Sequence[int], completion: Completion, temperature: float
) -> list[float]:
    """Log-probabilities of a response according to transformers."""
    return Reference(model).log_probs(weights, prompt, completion, temperature)
