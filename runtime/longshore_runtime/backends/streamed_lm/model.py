"""Score tokens and reply greedily with a Hugging Face decoder, most of whose layers may be in host memory."""

import math
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.utils.rnn import pad_sequence

from longshore_runtime.backends.attention_kernels import allow_new_shapes
from longshore_runtime.backends.pretrained import load_pretrained
from longshore_runtime.backends.streamed_lm import device_memory
from longshore_runtime.backends.streamed_lm.copies import Copies, ImmediateCopies, StreamCopies
from longshore_runtime.backends.streamed_lm.host_layers import HostLayers
from longshore_runtime.backends.streamed_lm.kv_cache import kv_cache
from longshore_runtime.backends.streamed_lm.plan import (
    RING_BUFFERS,
    SCORED_TOKENS,
    DecoderShape,
    batches,
    residency_order,
    resident_layers,
)
from longshore_runtime.backends.streamed_lm.ring import LayerRing

MODEL_TYPES: Final = ("llama", "qwen2", "qwen3")

_Tokens = Sequence[int]


@dataclass(frozen=True)
class StreamOptions:
    """Settings of how a model shares its device."""

    reserved_bytes: int | None = None
    """Bytes of the device for weights, KV cache and activations; None: what is free when a batch starts."""
    max_batch: int = 32
    """Largest number of sequences that run together."""
    pipelined: bool = True
    """Whether layers are copied while others compute; otherwise one after the other, to compare with."""


class StreamedLM:
    """A decoder-only model without gradients. Its results do not depend on where weights are stored."""

    def __init__(self, model: Any, device: torch.device, options: StreamOptions) -> None:
        """Take over a Hugging Face model that is in host memory; raises ValueError for one that cannot be streamed."""
        _require_plain_decoder(model.config)
        allow_new_shapes()
        self._device = device
        self._options = options
        self._reserved_bytes = options.reserved_bytes
        self._num_buffers = RING_BUFFERS if options.pipelined else 1
        self._model = model.eval()
        layers = list(model.base_model.layers)
        host = HostLayers(layers, pinned=device.type == "cuda")
        self._ring = LayerRing(host, device, self._num_buffers, self._copies())
        model.base_model.layers = torch.nn.ModuleList(
            _StreamedLayer(layer, index, self._ring) for index, layer in enumerate(layers)
        )
        model.to(device)  # What is left: embeddings, the last norm, the head.
        self.shape = _shape(model, host)
        self._dtype = host.layout.dtype

    @classmethod
    def load(cls, directory: Path, device: torch.device, options: StreamOptions) -> "StreamedLM":
        """Load a checkpoint: bf16 on CUDA, fp32 on the CPU; raises OSError or ValueError for an unusable one."""
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        return cls(load_pretrained(directory, dtype), device, options)

    def reserve(self, reserved_bytes: int | None) -> None:
        """Take so much device memory from the next batch on (see StreamOptions)."""
        self._reserved_bytes = reserved_bytes

    @property
    def max_context_tokens(self) -> int:
        """Longest prompt and reply together that the model has positions for."""
        limit: int = self._model.config.max_position_embeddings
        return limit

    @property
    def stop_tokens(self) -> frozenset[int]:
        """The tokens that end a reply, as the checkpoint's generation config names them."""
        stop = self._model.generation_config.eos_token_id
        return frozenset(stop if isinstance(stop, list) else [] if stop is None else [stop])

    def require_room(self, num_tokens: int) -> None:
        """Raise DoesNotFit if prompt and reply of so many tokens never fit into the reserved memory, even alone."""
        resident_layers(num_tokens, 1, self.shape, self._most_bytes(), ring_buffers=self._num_buffers)

    @property
    def num_resident_layers(self) -> int:
        """Layers that stayed on the device in the last batch."""
        return len(self._ring.resident)

    @torch.no_grad()
    def generate(
        self, prompts: Sequence[_Tokens], max_tokens: int, stop: Collection[int], limit_s: float = math.inf
    ) -> list[list[int]]:
        """Return greedy replies of up to `max_tokens`, without the token of `stop` that ends each.

        Raises:
            DoesNotFit: a prompt does not fit into the reserved memory, or into what is free of it now.
            TimeoutError: the first token after `limit_s` is due.
        """
        deadline_s = time.monotonic() + limit_s
        replies: dict[int, list[int]] = {}
        for batch in self._batches([len(prompt) + max_tokens for prompt in prompts]):
            tokens = self._decode([prompts[index] for index in batch], max_tokens, stop, deadline_s)
            replies.update(zip(batch, tokens, strict=True))
        return [replies[index] for index in range(len(prompts))]

    @torch.no_grad()
    def log_probs(self, prompts: Sequence[_Tokens], continuations: Sequence[_Tokens]) -> list[list[float]]:
        """Return the log-probability of every token of each continuation after its prompt; raises DoesNotFit."""
        sequences = [[*prompt, *rest] for prompt, rest in zip(prompts, continuations, strict=True)]
        scores: dict[int, list[float]] = {}
        for batch in self._batches([len(sequence) for sequence in sequences]):
            hidden = self._hidden(input_ids=self._padded([sequences[index] for index in batch]), use_cache=False)
            for row, index in zip(hidden, batch, strict=True):
                first = len(prompts[index]) - 1
                scores[index] = self._scores(row[first : len(sequences[index]) - 1], continuations[index])
        return [scores[index] for index in range(len(sequences))]

    def _batches(self, lengths_tokens: Sequence[int]) -> Iterator[list[int]]:
        """Yield indices of sequences that run together; the layers have been arranged for each batch that comes out."""
        budget, ring_buffers = self._budget_bytes(), self._num_buffers
        for batch in batches(lengths_tokens, self._options.max_batch, self.shape, budget, ring_buffers=ring_buffers):
            longest = lengths_tokens[batch[0]]
            count = resident_layers(longest, len(batch), self.shape, budget, ring_buffers=ring_buffers)
            self._ring.arrange(residency_order(self.shape.num_layers)[:count])
            yield batch

    def _decode(
        self, prompts: Sequence[_Tokens], max_tokens: int, stop: Collection[int], deadline_s: float
    ) -> list[list[int]]:
        lengths = torch.tensor([len(prompt) for prompt in prompts], device=self._device)
        longest = int(lengths.max())
        cache = kv_cache(self.shape, len(prompts), longest + max_tokens, self._dtype, self._device)
        # No mask: causal attention never looks at padding on the right from a real token. What is appended does.
        hidden = self._hidden(input_ids=self._padded(prompts), past_key_values=cache, use_cache=True)
        last = hidden[torch.arange(len(prompts), device=self._device), lengths - 1]
        visible = torch.arange(longest, device=self._device) < lengths[:, None]
        replies: list[list[int]] = [[] for _ in prompts]
        open_rows = set(range(len(prompts)))
        for step in range(max_tokens):
            chosen = self._head(last).argmax(dim=-1)
            for row, token in enumerate(chosen.tolist()):
                if token in stop:
                    open_rows.discard(row)
                elif row in open_rows:
                    replies[row].append(token)
            if not open_rows or step == max_tokens - 1:
                break
            if time.monotonic() > deadline_s:
                raise TimeoutError
            visible = torch.nn.functional.pad(visible, (0, 1), value=True)
            last = self._hidden(
                input_ids=chosen[:, None],
                attention_mask=visible,
                position_ids=(lengths + step)[:, None],
                past_key_values=cache,
                use_cache=True,
            )[:, 0]
        return replies

    def _scores(self, hidden: Tensor, targets: _Tokens) -> list[float]:
        """Return log-probabilities of `targets`, one per row of `hidden` (tokens, hidden size)."""
        scores: list[float] = []
        wanted = torch.tensor(targets, dtype=torch.long, device=self._device)
        for rows, ids in zip(torch.split(hidden, SCORED_TOKENS), torch.split(wanted, SCORED_TOKENS), strict=True):
            all_scores = self._head(rows).float().log_softmax(dim=-1)
            scores += all_scores.gather(1, ids[:, None])[:, 0].tolist()
        return scores

    def _hidden(self, **inputs: Any) -> Tensor:
        """Return the last hidden states (sequences, tokens, hidden size)."""
        hidden: Tensor = self._model.base_model(**inputs).last_hidden_state
        return hidden

    def _padded(self, sequences: Sequence[_Tokens]) -> Tensor:
        rows = [torch.tensor(sequence, dtype=torch.long) for sequence in sequences]
        return pad_sequence(rows, batch_first=True).to(self._device)

    @property
    def _head(self) -> Any:
        return self._model.get_output_embeddings()

    def _most_bytes(self) -> int:
        """Return the most bytes that this model may take of its device when it has it for itself."""
        total_bytes = device_memory.total_bytes(self._device)
        return total_bytes if self._reserved_bytes is None else min(self._reserved_bytes, total_bytes)

    def _budget_bytes(self) -> int:
        """Return the bytes that the model may take now, including those that it holds."""
        held_bytes = self.shape.base_bytes + self._ring.held_bytes
        return min(self._most_bytes(), device_memory.free_bytes(self._device) + held_bytes)

    def _copies(self) -> Copies:
        if self._device.type == "cuda" and self._options.pipelined:
            return StreamCopies(self._device, self._num_buffers)
        return ImmediateCopies()


class _StreamedLayer(torch.nn.Module):
    """Replacement of a decoder layer, whose weights are fetched when it runs."""

    def __init__(self, layer: torch.nn.Module, index: int, ring: LayerRing) -> None:
        super().__init__()
        self._layer = (layer,)  # In a tuple it is no part of the model: moving the model leaves it alone.
        self._index = index
        self._ring = ring

    def forward(self, *inputs: Any, **named: Any) -> Any:
        with self._ring.weights(self._index) as weights:
            return functional_call(self._layer[0], weights, inputs, named, strict=True)


def _require_plain_decoder(config: Any) -> None:
    if config.model_type not in MODEL_TYPES:
        raise ValueError(f"its type is {config.model_type!r}: a streamed model is one of {', '.join(MODEL_TYPES)}")
    if set(getattr(config, "layer_types", None) or ["full_attention"]) != {"full_attention"}:
        raise ValueError("it has sliding-window attention, which a streamed model does not support")


def _shape(model: Any, host: HostLayers) -> DecoderShape:
    config = model.config
    return DecoderShape(
        num_layers=len(host),
        layer_bytes=host.layout.num_bytes,
        base_bytes=sum(parameter.numel() * parameter.itemsize for parameter in model.parameters()),
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        vocab_size=config.vocab_size,
        element_bytes=host.layout.dtype.itemsize,
    )
