"""Data-parallel trainer of any Hugging Face causal language model, in plain PyTorch."""

import math
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file
from torch import Tensor

from longshore_runtime.backends.accumulation import Accumulation, norm
from longshore_runtime.backends.causal_lm import CausalLM
from longshore_runtime.backends.losses import sample_losses
from longshore_runtime.backends.micro_batches import pack
from longshore_runtime.backends.torch_world import add_up, join
from longshore_runtime.backends.world import World
from longshore_runtime.types import GradientSums, Sample, TrainerOptions, UpdateReport

__all__ = ["TorchTrainer", "World"]

_ADAM_BETAS = (0.9, 0.95)
"""0.95 is the usual second moment for language models: RL runs are short, and 0.999 would still be warming up."""
_ADAM_EPSILON = 1e-8
_HOST = torch.device("cpu")
_STATE_FILE = "trainer.pt"
_TOKENIZER_FILES = ("tokenizer*", "special_tokens_map.json", "vocab*", "merges.txt", "chat_template*", "*.model")


@dataclass
class _Gradients:
    """All gradients as one vector, of which each parameter's `grad` is a view: one sum over replicas, one norm."""

    parameters: list[torch.nn.Parameter]

    def place(self) -> None:
        """See `GradientBuffers`."""
        self.flat = self.parameters[0].detach().new_zeros(sum(p.numel() for p in self.parameters))
        offset = 0
        for parameter in self.parameters:
            parameter.grad = self.flat[offset : offset + parameter.numel()].view_as(parameter)
            offset += parameter.numel()

    def release(self) -> None:
        """See `GradientBuffers`."""
        for parameter in self.parameters:
            parameter.grad = None
        self.flat = torch.zeros(0)

    @property
    def tensors(self) -> list[Tensor]:
        """The vector."""
        return [self.flat]

    @property
    def gradients(self) -> list[Tensor]:
        """Of every parameter."""
        return [parameter.grad for parameter in self.parameters if parameter.grad is not None]


class TorchTrainer:
    """One replica (see `types.Trainer`): fp32 weights, gradients and AdamW; bf16 layers under autocast on CUDA."""

    def __init__(self, directory: Path, options: TrainerOptions, world: World | None = None) -> None:
        """Load a Hugging Face directory and join `world`; raises OSError or ValueError for an unusable model."""
        self._directory = directory
        self._options = options
        self._world = world or World()
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        torch.manual_seed(options.seed)
        self._model = CausalLM(directory, self._device)
        self._reference = self._frozen_reference() if options.kl_coefficient > 0 else None
        if self._device.type == "cuda":
            self._model.module.gradient_checkpointing_enable()
        self._parameters = [p for p in self._model.module.parameters() if p.requires_grad]
        self._gradients = _Gradients(self._parameters)
        self._accumulation = Accumulation(self._gradients, self._device, offloads=options.offload_gradients)
        self._optimizer = torch.optim.AdamW(
            self._parameters,
            lr=options.learning_rate,
            betas=_ADAM_BETAS,
            eps=_ADAM_EPSILON,
            weight_decay=options.weight_decay,
        )
        self._policy_version = 0
        self._awake = True
        join(self._world, self._device)

    def accumulate(self, samples: Sequence[Sample]) -> GradientSums:
        """Add the gradients of the sum of token losses; samples are packed by length into micro-batches."""
        self.wake()
        left_out = [sample for sample in samples if not sample.num_loss_tokens]
        silent = [sample for sample in samples if sample.num_loss_tokens and self._is_silent(sample)]
        trained = [sample for sample in samples if sample.num_loss_tokens and not self._is_silent(sample)]
        sums = GradientSums(num_tokens=sum(len(sample.response_tokens) for sample in left_out))
        with torch.no_grad():
            sums += self._pass_over(silent)
        if trained:
            self._accumulation.open()
            sums += self._pass_over(trained)
            self._accumulation.added()
        return sums

    def compare(self, samples: Sequence[Sample], denominator: float) -> float:
        """All replicas together: the gradients, added up over them, against those of one pass over all samples."""
        self.wake()
        in_loss = [sample for sample in samples if sample.num_loss_tokens]
        return self._accumulation.difference(
            lambda: self._pass_over(in_loss), lambda values: add_up(self._world, values), denominator
        )

    def update(self, denominator: float) -> UpdateReport:
        """All replicas together: sum, divide by `denominator`, clip to the global norm, one AdamW step."""
        assert denominator > 0, "an update needs the denominator of the whole step"
        self.wake()
        self._accumulation.collect()
        options, gradients = self._options, self._gradients.flat
        add_up(self._world, gradients)
        gradients /= denominator
        size = norm(gradients)
        if not math.isfinite(size):
            raise FloatingPointError(
                f"the gradient norm of step {self._policy_version + 1} is {size}: lower algorithm.learningRate"
            )
        gradients *= min(1.0, options.max_grad_norm / (size + 1e-6))
        learning_rate = options.learning_rate * min(1.0, (self._policy_version + 1) / max(1, options.warmup_steps))
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._move_optimizer(self._device)
        self._optimizer.step()
        self.discard()
        self._policy_version += 1
        return UpdateReport(size, learning_rate, self._policy_version)

    def weights(self) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
        """Current weights by Hugging Face name (tied ones once), copied to the host one by one."""
        for name, parameter in self._model.module.named_parameters():
            yield name, parameter.detach().to("cpu", copy=True).numpy().astype(np.float32, copy=False)

    def save(self, directory: Path) -> None:
        """Write weights and tokenizer (Hugging Face format), and optimizer, policy version and random state."""
        directory.mkdir(parents=True, exist_ok=True)
        self._model.module.save_pretrained(directory)
        for pattern in _TOKENIZER_FILES:
            for file in self._directory.glob(pattern):
                shutil.copyfile(file, directory / file.name)
        state = {
            "optimizer": self._optimizer.state_dict(),
            "policy_version": self._policy_version,
            "random": torch.get_rng_state(),
        }
        torch.save(state, directory / _STATE_FILE)

    def load(self, directory: Path) -> None:
        """Restore what `save` wrote, bit by bit; accumulated gradients are dropped."""
        stored: dict[str, Tensor] = {}
        for file in sorted(directory.glob("*.safetensors")):
            stored.update(load_file(file))
        with torch.no_grad():
            for name, parameter in self._model.module.named_parameters():
                parameter.copy_(stored[name])
        state = torch.load(directory / _STATE_FILE, map_location="cpu", weights_only=True)
        self._optimizer.load_state_dict(state["optimizer"])
        self._move_optimizer(_HOST)
        self._policy_version = state["policy_version"]
        torch.set_rng_state(state["random"])
        self.discard()

    def discard(self) -> None:
        """Drop accumulated gradients."""
        self._accumulation.drop()

    def sleep(self) -> None:
        """Move everything to the host."""
        self._accumulation.keep()
        self._move_models(_HOST)
        self._move_optimizer(_HOST)
        self._awake = False
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def wake(self) -> None:
        """Bring the weights back; gradients and the optimizer's state come when they are needed."""
        if not self._awake:
            self._move_models(self._device)
            self._awake = True

    def _is_silent(self, sample: Sample) -> bool:
        """Without a KL penalty a zero advantage has no gradient: its forward pass serves the metrics only."""
        return sample.advantage == 0.0 and self._reference is None

    def _pass_over(self, samples: Sequence[Sample]) -> GradientSums:
        """Forward, and backward where gradients are enabled, micro-batch by micro-batch."""
        lengths = [len(sample.prompt_tokens) + len(sample.response_tokens) for sample in samples]
        sums = GradientSums()
        for indices in pack(lengths, self._options.max_tokens_per_micro_batch):
            sums += self._micro_batch([samples[index] for index in indices])
        return sums

    def _micro_batch(self, samples: Sequence[Sample]) -> GradientSums:
        tokens = self._model.response_tokens(samples, self._options.temperature)
        reference = self._reference_log_probs(samples)
        loss, sums = sample_losses(samples, tokens.log_probs, tokens.entropies, reference, self._options)
        if torch.is_grad_enabled():
            torch.autograd.backward(loss)
        return sums

    def _reference_log_probs(self, samples: Sequence[Sample]) -> Tensor | None:
        if self._reference is None:
            return None
        with torch.no_grad():
            return self._reference.response_tokens(samples, self._options.temperature).log_probs

    def _frozen_reference(self) -> CausalLM:
        reference = CausalLM(self._directory, self._device)
        reference.module.requires_grad_(False)
        return reference

    def _move_models(self, device: torch.device) -> None:
        for model in (self._model, self._reference):
            if model is not None:
                model.module.to(device)

    def _move_optimizer(self, device: torch.device) -> None:
        for state in self._optimizer.state.values():
            for name, value in state.items():
                if isinstance(value, Tensor) and value.dim() > 0:
                    state[name] = value.to(device)
