"""A Hugging Face causal language model as training sees it: log-probabilities of response tokens."""

import copy
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from longshore.api.objectives.objective import TopTokens
from longshore.api.training import Lora
from longshore.checks.memory import logit_chunk_tokens
from longshore_runtime.backends.attention_kernels import PACKED
from longshore_runtime.backends.file_names import FileNames
from longshore_runtime.backends.hf_mapping.files import ALL_ROWS, TensorFiles
from longshore_runtime.backends.lora import Adapter, Stored
from longshore_runtime.backends.losses import NO_REFERENCE, ReferenceTokens, most_likely_tokens, token_log_probs
from longshore_runtime.backends.micro_batches import pack, pack_rows
from longshore_runtime.backends.pretrained import load_pretrained, require_clear_head
from longshore_runtime.backends.router_replay import RouterReplay
from longshore_runtime.backends.trainer_protocol import Sample
from longshore_runtime.trajectories.trajectory import Mask

T = TypeVar("T")

_TRIAL: Final = ([3, 5, 7, 2, 4], [6, 1, 4, 7, 5], [2, 6, 3])
"""Token ids of three sequences, with which a model shows whether it keeps sequences of one row apart."""
_WINDOWS: Final = ("sliding_window", "attention_chunk_size")
"""Names of attributes and settings with the number of tokens that a token sees."""
_SHORT_WINDOW: Final = 2
_DROPS: Final = re.compile("dropout|layerdrop|pdrop")
"""Names of attributes and settings with the share of values, or of layers, that a module leaves out."""


@dataclass(frozen=True)
class FlatResponseTokens:
    """Flat values, [response tokens of a micro-batch], one sample after the other."""

    log_probs: Tensor
    entropies: Tensor
    top: TopTokens | None = None
    """The most likely tokens of a teacher, if it was asked for them."""


class CausalLM(torch.nn.Module):
    """A causal language model with fp32 weights, which compute; a subclass may compute with copies of another type."""

    rounding = 1e-3
    """Relative difference of hidden states that two kernels may show."""
    spread_mistake: str | None = None
    """Why experts are put together on every rank although the job spreads them; None: they are not, or it does not."""

    def __init__(
        self, directory: Path, device: torch.device, lora: Lora | None = None, *, replays_experts: bool = False
    ) -> None:
        """Load a checkpoint, to train all of it or an adapter; raises OSError or ValueError for an unusable one.

        A model is unusable, for example, if its logits are more than a linear head over hidden states.

        Args:
            directory: directory with the checkpoint.
            device: device that computes.
            lora: adapter to train; None: all weights are trained.
            replays_experts: whether tokens pass through the experts that engines chose.
        """
        super().__init__()
        self.device = device
        files = TensorFiles(directory)
        self.module: Any = self._open(directory)
        require_clear_head(self.module)
        self.file_names = FileNames(self.module, files)
        self.adapter = None if lora is None else Adapter(self.module, lora, self.file_names)
        self.vocab_size: int = self.module.config.get_text_config().vocab_size
        self._chunk_tokens = logit_chunk_tokens(self.vocab_size)
        _turn_dropout_off(self.module)
        self._move_to_device(files)
        self._require_plain_head()
        self._replay = self._replayed_routers() if replays_experts else None
        self._packs = self._can_pack()

    @property
    def stored(self) -> Stored:
        """What is trained, published and saved: the adapter, or all parameters."""
        return self.adapter or self.file_names

    def _open(self, directory: Path) -> Any:
        """Return the model, with its weights in host memory or without."""
        return load_pretrained(directory, torch.float32)

    def _move_to_device(self, files: TensorFiles) -> None:
        """Compare the weights with those of the files, and move the model to the device."""
        self.file_names.require_same_values(lambda parameter: parameter, lambda _: ALL_ROWS)
        self.module.to(self.device)

    def micro_batches(self, lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
        """Return the indices of the sequences of each pass; tokens count with their padding, if there is any."""
        return (pack if self._packs else pack_rows)(lengths, max_tokens)

    def response_tokens(
        self,
        samples: Sequence[Sample],
        temperature: float,
        *,
        differentiates_entropies: bool = False,
        reference: ReferenceTokens = NO_REFERENCE,
        is_reference: bool = False,
    ) -> FlatResponseTokens:
        """Compute log-probabilities (at the sampling temperature) and entropies of the samples' response tokens.

        Args:
            samples: the samples.
            temperature: sampling temperature.
            differentiates_entropies: whether entropies have a gradient.
            reference: what a teacher said of them.
            is_reference: whether the weights are not those of the engines, so that routers choose experts anew.
        """

        def compute(hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
            return token_log_probs(
                hidden,
                self._head,
                reference.with_targets(targets),
                temperature,
                self._chunk_tokens,
                differentiates_entropies=differentiates_entropies,
            )

        self._choose_experts(samples, is_reference=is_reference)
        log_probs, entropies = self._at_response_tokens(samples, compute)
        own, top = reference.split(log_probs)
        return FlatResponseTokens(own, entropies, top)

    def reference_tokens(
        self, samples: Sequence[Sample], temperature: float, num_top_tokens: int, vocab_size: int
    ) -> ReferenceTokens:
        """Compute what this frozen model says of the samples' response tokens to a model with `vocab_size` tokens."""
        if not num_top_tokens:
            return ReferenceTokens(self.response_tokens(samples, temperature, is_reference=True).log_probs)

        def compute(hidden: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
            return most_likely_tokens(hidden, self._head, temperature, self._chunk_tokens, num_top_tokens, vocab_size)

        self._choose_experts(samples, is_reference=True)
        return ReferenceTokens.on_host(*self._at_response_tokens(samples, compute))

    def _choose_experts(self, samples: Sequence[Sample], *, is_reference: bool) -> None:
        """Have the next pass take the experts that engines chose for the samples, if they told."""
        if self._replay is not None and not is_reference:
            self._replay.begin(samples, self._join, self.device)
        elif self._replay is not None:
            self._replay.end()

    @property
    def _join(self) -> Callable[[Sequence[npt.NDArray[Any]]], Tensor]:
        return _behind_another if self._packs else _as_rows

    def _at_response_tokens(self, samples: Sequence[Sample], compute: Callable[[Tensor, Tensor], T]) -> T:
        """Compute something of the hidden states before each response token of the samples, and of that token.

        Without samples, it makes a pass over one token without results, for ranks that compute together.
        """
        tokens = [np.concatenate((sample.prompt_tokens, sample.trajectory.tokens)) for sample in samples]
        predicts = [_predicts(sample) for sample in samples]
        if not samples:
            tokens, predicts = [np.zeros(1, np.int32)], [np.zeros(1, np.bool_)]
        lengths = [len(one) for one in tokens]
        row, mask = self._join(tokens).long().to(self.device), self._join(predicts).to(self.device)
        return self._run(lambda: self._at(row, mask, lengths, compute))

    def forward(self, compute: Callable[[], T]) -> T:
        """Call a function that computes with the model, within what hooks do before and after a pass."""
        return compute()

    def _run(self, compute: Callable[[], T]) -> T:
        """Make a pass: call a function that computes with the model."""
        result: T = self(compute)
        return result

    def _at(
        self, tokens: Tensor, predicts: Tensor, lengths: Sequence[int], compute: Callable[[Tensor, Tensor], T]
    ) -> T:
        """Call a function with the hidden states where `predicts` is true, and with the tokens after them.

        Tokens and `predicts` have sequences of these lengths, one behind the other in one row or each in a padded row.
        """
        hidden = self._hidden(tokens, lengths if self._packs else None)
        targets = tokens.roll(-1, dims=1)[predicts]
        return compute(hidden[predicts], targets)

    @property
    def _head(self) -> torch.nn.Module:
        head: torch.nn.Module = self.module.get_output_embeddings()
        return head

    def _hidden(self, tokens: Tensor, lengths: Sequence[int] | None = None) -> Tensor:
        """Compute hidden states; with lengths, of sequences that lie one behind the other in a single row."""
        # Right padding needs no mask: causal attention never looks at it from a real token.
        arguments = {} if lengths is None else _places(lengths, tokens.device)
        hidden: Tensor = self.module.base_model(input_ids=tokens, use_cache=False, **arguments).last_hidden_state
        return hidden

    @torch.no_grad()
    def _can_pack(self) -> bool:
        """Return whether sequences of one row are computed as each alone; attention is set to what does it, then.

        They are not where layers have more memory than attention, or masks that attention without one cannot know of.
        Most models hand their windows to attention, and some have them in masks alone.
        """
        if not getattr(self.module, "_supports_flash_attn", False):
            return False
        first, other, second = _TRIAL
        lengths, usual = [len(first), len(second)], self.module.config._attn_implementation
        try:
            with _short_windows(self.module):
                alone = self._states(second)
                _set_attention(self.module, PACKED)
                found, again = (self._states([*before, *second], lengths)[len(first) :] for before in (first, other))
        except TypeError:  # Layers do not hand on what attention needs.
            is_apart = False
        except ValueError:  # Torch's own attention would leave out the same parts of the scores, in silence.
            is_apart, usual = False, "eager"
        else:
            # Behind another sequence, kernels round as before, but for experts, which get other tokens.
            is_apart = _differ_less(again, found, 1e-6) and _differ_less(found, alone, self.rounding)
        if not is_apart:
            _set_attention(self.module, usual)
        return is_apart

    def _states(self, tokens: list[int], lengths: Sequence[int] | None = None) -> Tensor:
        row = torch.tensor([tokens], device=self.device)
        return self._run(lambda: self._hidden(row, lengths))[0]

    @torch.no_grad()
    def _replayed_routers(self) -> RouterReplay:
        """Return what puts the engines' experts in the place of the model's; raises ValueError if nothing can."""
        try:
            replay = RouterReplay(self.module)
            replay.verify(lambda tokens: self._run(lambda: self._hidden(tokens)), self.device)
        except ValueError as error:
            raise ValueError(f"{error}; remove trainer.routerReplay") from error
        return replay

    @torch.no_grad()
    def _require_plain_head(self) -> None:
        """Raise ValueError unless the head alone, which training uses, gives the logits of the model's own forward."""
        tokens = torch.arange(4, device=self.device).unsqueeze(0)
        if self.module.base_model is self.module:
            raise ValueError("transformers has no model of it without the output layer; choose another architecture")
        expected = self._run(lambda: self.module(input_ids=tokens, use_cache=False).logits)
        found = self._run(lambda: self._head(self._hidden(tokens)))
        if not torch.allclose(found, expected, rtol=1e-3, atol=1e-3):
            raise ValueError("its logits are not a linear map of the last hidden state; choose another architecture")


def _predicts(sample: Sample) -> Mask:
    """Return the mask [tokens of prompt and response] of the tokens before those of the response."""
    predicts = np.zeros(sample.num_tokens, np.bool_)
    predicts[len(sample.prompt_tokens) - 1 : -1] = True
    return predicts


def _behind_another(sequences: Sequence[npt.NDArray[Any]]) -> Tensor:
    """Return one row, [1, tokens of all sequences, ...]."""
    return torch.from_numpy(np.concatenate(sequences)).unsqueeze(0)


def _as_rows(sequences: Sequence[npt.NDArray[Any]]) -> Tensor:
    """Return padded rows, [sequences, longest length, ...]."""
    return pad_sequence([torch.from_numpy(one) for one in sequences], batch_first=True)


def _places(lengths: Sequence[int], device: torch.device) -> dict[str, Any]:
    """Return what tells a model where in a row its sequences are, by the names of transformers."""
    ends = torch.tensor([0, *lengths]).cumsum(0).to(device, torch.int32)
    positions = torch.cat([torch.arange(length) for length in lengths]).to(device)
    places: dict[str, Any] = {"position_ids": positions.unsqueeze(0)}
    for side in "qk":
        places |= {f"cu_seq_lens_{side}": ends, f"max_length_{side}": max(lengths)}
    return places


def _set_attention(module: Any, name: str) -> None:
    """Choose an attention function of transformers, also for layers with settings of their own."""
    for layer in module.modules():
        if (settings := getattr(layer, "config", None)) is not None:
            settings._attn_implementation = name


@contextmanager
def _short_windows(module: Any) -> Iterator[None]:
    """Shorten the windows of attention, so that sequences of a few tokens show what is done with them."""
    layers = list(module.modules())
    keepers = {id(one): one for layer in layers for one in (layer, getattr(layer, "config", None))}.values()
    windows = [
        (one, name, value)
        for one in keepers
        for name in _WINDOWS
        if isinstance(value := getattr(one, name, None), int) and value > _SHORT_WINDOW
    ]
    for keeper, name, _ in windows:
        setattr(keeper, name, _SHORT_WINDOW)
    try:
        yield
    finally:
        for keeper, name, value in windows:
            setattr(keeper, name, value)


def _differ_less(values: Tensor, others: Tensor, share: float) -> bool:
    return bool(torch.linalg.vector_norm(values - others) <= share * torch.linalg.vector_norm(others))


def _turn_dropout_off(module: Any) -> None:
    """Turn dropout off, so that the ratio to the sampling distribution is 1 before the first step.

    `eval` would also turn off gradient checkpointing.
    """
    module.train()
    settings = copy.deepcopy(module.config)
    _set_shares_to_zero(settings)
    for layer in module.modules():
        if isinstance(layer, torch.nn.Dropout):
            layer.p = 0.0
        # Some layers read the share at each pass. The model itself keeps its settings, which are saved with it.
        if layer is not module and getattr(layer, "config", None) is module.config:
            layer.config = settings
        _set_shares_to_zero(layer)


def _set_shares_to_zero(keeper: Any) -> None:
    shares = [name for name, value in vars(keeper).items() if isinstance(value, float) and _DROPS.search(name)]
    for name in shares:
        setattr(keeper, name, 0.0)
