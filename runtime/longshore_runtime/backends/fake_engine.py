"""An engine without a model. All tokens are hashes, so tests of the code around engines are exactly repeatable."""

import hashlib
import json
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from longshore.checks.model_files import config_of
from longshore.checks.model_limits import experts_per_token, language_part, num_experts
from longshore_runtime.backends.engine_protocol import (
    Completion,
    EngineStats,
    FinishReason,
    GrowingResponse,
    LiveResponse,
    Request,
)
from longshore_runtime.clock import Clock, SystemClock
from longshore_runtime.weights.buckets import Receipt, checksums
from longshore_runtime.weights.shared import BroadcastGroup, BucketPart, SharedBucket
from longshore_runtime.weights.slices import Bucket, Checksum

NO_TOKEN: Final = -1
"""The end token of a model that has none."""
UNLIMITED_KV_TOKENS: Final = 1 << 40
"""Reported capacity of a KV cache without a limit."""


@dataclass(frozen=True)
class FakeEngineOptions:
    """Lengths of the responses, and properties of the simulated machine."""

    max_num_seqs: int = 256
    median_tokens: float = 6.0
    """Median length of a response; lengths are lognormal."""
    sigma: float = 1.25
    """Standard deviation of the logarithm of the length: the weight of the tail."""
    vocab_size: int = 100
    eos_id: int = 2
    num_kv_blocks: int = 0
    """Blocks of the KV cache; 0: without a limit. If they run out, the youngest request is preempted."""
    kv_block_tokens: int = 16
    step_s: float = 0.0
    """Seconds that a step takes."""
    sleep_s: float = 0.0
    """Real time that falling asleep takes: for tests of engines that hold on to their memory."""
    max_tp_size: int = 16
    """Largest tensor-parallel size that starts: for tests of sizes that the model does not split into."""
    num_layers: int = 0
    """Number of layers of a mixture of experts; 0: responses come without experts."""
    num_experts: int = 0
    experts_per_token: int = 0
    ignores_weights: bool = False
    """Whether tokens are independent of the weights: for tests of trainers, whose weights differ by rounding."""

    @classmethod
    def for_model(cls, model: Path, **options: float) -> "FakeEngineOptions":
        """Return options with the vocabulary of a Hugging Face checkpoint, if it has one."""
        unknown = set(options) - set(cls.__dataclass_fields__)
        if unknown:
            raise ValueError(f"rollout.engine.extraArgs: backend Fake has no option {sorted(unknown)[0]!r}")
        config = model / "config.json"
        if not config.exists():
            return cls(**options)  # type: ignore[arg-type]
        values = json.loads(config.read_text())
        eos = values.get("eos_token_id", NO_TOKEN)
        vocabulary = {"vocab_size": values["vocab_size"], "eos_id": eos[0] if isinstance(eos, list) else eos}
        return cls(**{**vocabulary, **options})


def expert_sizes(model: Path) -> dict[str, int]:
    """Return the options of an engine that returns experts of a Hugging Face checkpoint; none if it has no experts."""
    config = config_of(model)
    if not num_experts(config):
        return {}
    text = language_part(config)
    return {
        "num_layers": text["num_hidden_layers"],
        "num_experts": num_experts(config),
        "experts_per_token": experts_per_token(config),
    }


class FakeEngine:
    """An `Engine` without a model.

    The token at a position depends on (prompt, seed, weights, position) and on nothing else: neither on the other
    requests, nor on where the response was cut and resumed.
    """

    def __init__(
        self,
        options: FakeEngineOptions,
        clock: Clock | None = None,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._options = options
        self._clock = clock or SystemClock()
        self._pause = pause
        self._running: list[_FakeResponse] = []
        self._waiting: list[_FakeResponse] = []
        self._weights_checksum = ""
        self._is_loaded = False
        self._policy_version = -1
        self._num_steps = self._num_tokens = self._num_preemptions = 0
        self._busy_s = 0.0
        self._asleep = False

    def add(self, requests: Sequence[Request]) -> None:
        """Take requests into the waiting queue."""
        assert self._policy_version >= 0, "an engine serves only weights that were published to it"
        assert not self._asleep, "a sleeping engine takes no requests"
        checksum = "" if self._options.ignores_weights else self._weights_checksum
        self._waiting += [_FakeResponse(request, self._policy_version, checksum, self._options) for request in requests]

    def abort(self, request_ids: Sequence[str]) -> list[Completion]:
        """Stop requests, and return what they have sampled."""
        ids = set(request_ids)
        stopped = [response for response in self._running + self._waiting if response.request.request_id in ids]
        self._running = [response for response in self._running if response.request.request_id not in ids]
        self._waiting = [response for response in self._waiting if response.request.request_id not in ids]
        return [self._end(response, FinishReason.ABORT) for response in stopped]

    def step(self) -> list[Completion]:
        """Sample one token for every running request."""
        assert not self._asleep, "a sleeping engine does not step"
        if not self.has_work():
            return []
        started_s = self._clock.now_s()
        if self._options.step_s:
            self._pause(self._options.step_s)
        self._num_steps += 1
        self._preempt()
        self._admit()
        ended: list[Completion] = []
        for response in self._running:
            reason = response.grow()
            if reason is not None:
                ended.append(self._end(response, reason))
        self._num_tokens += len(self._running)
        self._running = [response for response in self._running if not response.ended]
        self._busy_s += self._clock.now_s() - started_s
        return ended

    def has_work(self) -> bool:
        """Return whether any request is unfinished."""
        return bool(self._running or self._waiting)

    def begin_weights(self, channel: BroadcastGroup | None = None) -> bool:
        """Prepare for new weights; requests are refused until `serve`."""
        assert not self.has_work(), "weights change only while nothing runs"
        assert not self._asleep, "a sleeping engine takes no weights"
        self._policy_version, self._is_loaded = -1, False
        self._receipt = Receipt()
        self._broadcast = _join(channel) if channel is not None else None
        return False

    def load_bucket(self, bucket: Bucket | SharedBucket) -> None:
        """Check a bucket like any engine, and forget its values."""
        if isinstance(bucket, SharedBucket):
            self._receipt.take(_read(bucket.part(0), self._broadcast))
        else:
            self._receipt.take(checksums(bucket))

    def finish_weights(self) -> str:
        """Return the checksum of the weights."""
        self._weights_checksum = self._receipt.complete()
        self._broadcast, self._is_loaded = None, True
        return self._weights_checksum

    def serve(self, policy_version: int) -> None:
        """Take requests for the loaded weights."""
        assert self._is_loaded, "finish_weights comes first"
        self._policy_version, self._is_loaded = policy_version, False

    def live(self) -> list[LiveResponse]:
        """Return the lengths of running and waiting responses."""
        return [response.live for response in self._running + self._waiting]

    def stats(self) -> EngineStats:
        """Return state and counters."""
        num_blocks = self._options.num_kv_blocks
        return EngineStats(
            num_running=len(self._running),
            num_waiting=len(self._waiting),
            kv_usage=self._used_blocks / num_blocks if num_blocks else 0.0,
            kv_capacity_tokens=num_blocks * self._options.kv_block_tokens or UNLIMITED_KV_TOKENS,
            num_preemptions=self._num_preemptions,
            num_steps=self._num_steps,
            num_tokens=self._num_tokens,
            busy_s=self._busy_s,
            read_s=self._clock.now_s(),
            policy_version=self._policy_version,
        )

    def sleep(self) -> None:
        """Refuse work until `wake`."""
        assert not self.has_work(), "an engine sleeps only while nothing runs"
        if self._options.sleep_s:
            self._pause(self._options.sleep_s)
        self._asleep = True

    def wake(self) -> None:
        """Take work again."""
        self._asleep = False

    @property
    def _used_blocks(self) -> int:
        return sum(response.num_blocks for response in self._running)

    def _end(self, response: "_FakeResponse", reason: FinishReason) -> Completion:
        return Completion(response.request.request_id, response.trajectory, reason, self._num_steps)

    def _preempt(self) -> None:
        """Put the youngest requests back until the rest fits. One always runs, so that the engine makes progress."""
        while self._options.num_kv_blocks and len(self._running) > 1 and not self._fits(0):
            self._waiting.insert(0, self._running.pop())
            self._num_preemptions += 1

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self._options.max_num_seqs:
            if self._running and not self._fits(self._waiting[0].num_blocks):
                return
            self._running.append(self._waiting.pop(0))

    def _fits(self, more_blocks: int) -> bool:
        return not self._options.num_kv_blocks or self._used_blocks + more_blocks <= self._options.num_kv_blocks


def _join(channel: BroadcastGroup) -> Any:
    import torch  # Nothing else of this engine needs it.

    from longshore_runtime.backends.broadcast import Broadcast

    return Broadcast(channel, channel.first, torch.device("cpu"))


def _read(part: BucketPart, broadcast: Any) -> Mapping[str, Checksum]:
    """Return the checksums of a bucket."""
    import torch

    from longshore_runtime.backends.shared_buffer import open_buffer
    from longshore_runtime.backends.weight_sender import read, receive

    host = torch.device("cpu")
    buffer = receive(part, broadcast, host) if part.buffer is None else open_buffer(part.buffer, host)
    return {slot.name: slot.checksum for slot, _ in read(part, buffer)}  # They are checked by `read`.


class _FakeResponse(GrowingResponse):
    """A response whose tokens are hashes."""

    def __init__(self, request: Request, policy_version: int, weights: str, options: FakeEngineOptions) -> None:
        super().__init__(request, policy_version)
        self._options = options
        seed = request.seed if request.temperature > 0 else 0
        identity = f"{tuple(request.prompt_tokens.tolist())} {seed} {weights}"
        self._key = hashlib.blake2b(identity.encode(), digest_size=16).digest()
        self._length = self._hashed_length()
        self._position = self.num_kept
        self._num_read = self.num_routed
        self.ended = False

    @property
    def num_blocks(self) -> int:
        """Return the KV blocks that the response needs in the next step."""
        num_tokens = len(self.request.prompt_tokens) + self._position + 1
        return math.ceil(num_tokens / self._options.kv_block_tokens)

    def grow(self) -> FinishReason | None:
        """Append the token of the next position; return why the response ended, if it did."""
        token, log_prob = self._hashed_token(self._position)
        self._read_tokens()
        self.tokens.append(token)
        self.log_probs.append(log_prob)
        self._position += 1
        reason = None
        if token == self._options.eos_id:
            reason = FinishReason.STOP
        elif self.remaining_tokens == 0:
            reason = FinishReason.LENGTH
        self.ended = reason is not None
        return reason

    def _read_tokens(self) -> None:
        """Choose experts for the tokens that a model would read now: by version, place and layer."""
        num_layers, num_experts = self._options.num_layers, self._options.num_experts
        if num_layers:
            end = len(self.request.prompt_tokens) + self._position
            places = np.arange(self._num_read, end)[:, None, None] + self.policy_version
            shape = (end - self._num_read, num_layers, self._options.experts_per_token)
            numbers = places + np.arange(num_layers)[:, None] + np.arange(shape[-1])
            self.experts.extend((numbers % num_experts).astype(np.uint8))
            self._num_read = end

    def _hashed_length(self) -> int:
        if self.request.ignores_end:
            return self.request.max_tokens + 1
        fraction = (int.from_bytes(self._key[:6], "big") + 0.5) / 2**48
        deviation = statistics.NormalDist().inv_cdf(fraction)
        return max(1, round(self._options.median_tokens * math.exp(self._options.sigma * deviation)))

    def _hashed_token(self, position: int) -> tuple[int, float]:
        digest = hashlib.blake2b(position.to_bytes(4, "big"), key=self._key, digest_size=8).digest()
        log_prob = -3.0 * int.from_bytes(digest[4:], "big") / 2**32
        if position + 1 >= self._length:
            return self._options.eos_id, log_prob
        token = int.from_bytes(digest[:4], "big") % (self._options.vocab_size - 1)
        return (token + 1 if token >= self._options.eos_id else token), log_prob
