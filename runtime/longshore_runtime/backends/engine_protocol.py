"""An inference engine as the rollout uses it: requests, completions, its state, and the protocol of all backends."""

import zlib
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Protocol

import numpy as np

from longshore.rounds.messages import ResponseLength
from longshore_runtime.trajectories.episode import Episode
from longshore_runtime.trajectories.trajectory import (
    EMPTY,
    ComparedByValue,
    GrowingExperts,
    TokenIds,
    Trajectory,
    token_ids,
)
from longshore_runtime.weights.shared import BroadcastGroup, SharedBucket
from longshore_runtime.weights.slices import Bucket


class FinishReason(StrEnum):
    """Reason why a response ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


@dataclass(frozen=True, eq=False)
class Request(ComparedByValue):
    """One response to sample; `partial` holds tokens kept from earlier, to be continued."""

    request_id: str
    prompt_tokens: TokenIds
    max_tokens: int
    """Limit of the whole response, partial tokens included."""
    temperature: float
    seed: int
    partial: Trajectory = field(default_factory=lambda: EMPTY)
    ignores_end: bool = False
    """Whether the response continues past end tokens, up to `max_tokens`: for measurements at a given length."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "prompt_tokens", token_ids(self.prompt_tokens))


@dataclass(frozen=True)
class Completion:
    """A response that ended or was aborted, with everything sampled so far (partial tokens included)."""

    request_id: str
    trajectory: Trajectory
    finish_reason: FinishReason
    engine_step: int
    """Step of the engine at which it ended: breaks ties, so that a replay makes the same decisions."""
    packed_text: bytes = b""
    """Compressed `text`, which would take as much memory as the tokens."""
    episode: Episode | None = None
    """What the response did in its environment; None: it has none, or the episode is not over."""

    @property
    def num_tokens(self) -> int:
        """Number of response tokens, those of the last branch of an episode."""
        return len(self.trajectory)

    @property
    def length(self) -> ResponseLength:
        """Length of the response, with turns and time if it is an episode."""
        return self.num_tokens if self.episode is None else self.episode.length

    @property
    def trajectories(self) -> Sequence[Trajectory]:
        """All that is trained on: the trajectory, or those of all branches of an episode."""
        return [self.trajectory] if self.episode is None else [one.trajectory for one in self.episode.branches]

    @property
    def num_total_tokens(self) -> int:
        """Number of response tokens, in all branches of an episode."""
        return sum(map(len, self.trajectories))

    @property
    def num_sampled_tokens(self) -> int:
        """Number of tokens that the policy sampled, in all branches of an episode."""
        return sum(one.num_sampled_tokens for one in self.trajectories)

    @property
    def text(self) -> str:
        """The response as text without special tokens, the last turn of an episode; empty if it was aborted."""
        return zlib.decompress(self.packed_text).decode() if self.packed_text else ""

    def with_text(self, text: str) -> "Completion":
        """Return the same response with its text."""
        return replace(self, packed_text=zlib.compress(text.encode(), level=1))


@dataclass(frozen=True)
class LiveResponse:
    """Length of a response that an engine runs, or holds back."""

    prompt_tokens: int
    generated_tokens: int
    """Response tokens, including those of its partial response."""


@dataclass(eq=False)
class GrowingResponse:
    """A response that an engine is sampling: a request, and the tokens that one policy version adds to it."""

    request: Request
    policy_version: int
    tokens: "array[int]" = field(default_factory=lambda: array("i"))
    log_probs: "array[float]" = field(default_factory=lambda: array("f"))
    experts: GrowingExperts = field(default_factory=GrowingExperts)
    """Experts of the tokens from `num_routed` to the last but one; empty if the engine does not tell them."""

    def __post_init__(self) -> None:
        if self.remaining_tokens < 1:
            raise ValueError(
                f"request {self.request.request_id}: its partial response already has maxTokens = "
                f"{self.request.max_tokens} tokens, so there is nothing to sample"
            )

    @property
    def num_kept(self) -> int:
        """Number of tokens of the partial response."""
        return len(self.request.partial)

    @property
    def num_routed(self) -> int:
        """Number of the first tokens of prompt and partial response whose experts are known and kept."""
        experts = self.request.partial.experts
        return 0 if experts is None else len(self.request.prompt_tokens) - 1 + len(experts)

    @property
    def remaining_tokens(self) -> int:
        """Number of tokens that may still be sampled."""
        return self.request.max_tokens - self.num_kept - len(self.tokens)

    @property
    def live(self) -> LiveResponse:
        """Prompt length and number of response tokens so far."""
        generated_tokens = self.request.max_tokens - self.remaining_tokens
        return LiveResponse(len(self.request.prompt_tokens), generated_tokens)

    @property
    def trajectory(self) -> Trajectory:
        """The response so far; partial tokens keep the policy versions that sampled them, and their experts."""
        tokens, log_probs = np.frombuffer(self.tokens, np.int32), np.frombuffer(self.log_probs, np.float32)
        trajectory = self.request.partial + Trajectory.sampled(self.policy_version, tokens, log_probs)
        if (rows := self.experts.rows) is None:
            return trajectory
        return trajectory.with_experts(rows, len(self.request.prompt_tokens))


@dataclass(frozen=True)
class EngineStats:
    """State of one engine; counters grow from its start."""

    num_running: int = 0
    num_waiting: int = 0
    kv_usage: float = 0.0
    """Share of KV-cache blocks in use, 0 to 1."""
    kv_capacity_tokens: int = 0
    """Tokens that the KV cache holds."""
    num_preemptions: int = 0
    num_prompt_tokens: int = 0
    """Tokens that requests came with: of prompts, of earlier turns, and kept ones."""
    num_cached_tokens: int = 0
    """Those of them that the KV cache had already."""
    num_steps: int = 0
    num_tokens: int = 0
    """Tokens sampled."""
    busy_s: float = 0.0
    """Seconds spent in steps."""
    read_s: float = 0.0
    """Time of this reading, by the engine's own clock: gives the time between two readings."""
    policy_version: int = -1


class Engine(Protocol):
    """An in-process inference engine, used by one thread only.

    `step` runs one batch iteration. Weights may change only while nothing runs.
    """

    def add(self, requests: Sequence[Request]) -> None:
        """Take requests into the running batch (or its waiting queue)."""

    def abort(self, request_ids: Sequence[str]) -> list[Completion]:
        """Stop requests; tokens so far come back with reason ABORT; unknown ids are ignored."""

    def step(self) -> list[Completion]:
        """Advance every running request by one token; returns the responses that ended."""

    def has_work(self) -> bool:
        """Return whether a step would do anything."""

    def begin_weights(self, channel: BroadcastGroup | None = None) -> bool:
        """Prepare for new weights; until `serve`, the policy version is -1 and no request is taken.

        Weights that had begun to come are given up.

        Args:
            channel: where to meet the trainer that broadcasts them.

        Returns:
            Whether it holds all matrices in bfloat16.
        """

    def load_bucket(self, bucket: Bucket | SharedBucket) -> None:
        """Put some parameters in place; raises ValueError for one of another model, or one that came before."""

    def finish_weights(self) -> str:
        """Drop every cached prefix, and let go of what the weights came in; raises ValueError if a parameter did not.

        Returns `combined_checksum` of the buckets.
        """

    def serve(self, policy_version: int) -> None:
        """Take requests for the loaded weights; if `sleep` freed the KV cache, allocate it again."""

    def live(self) -> list[LiveResponse]:
        """Return the lengths of all unfinished responses, running or waiting."""

    def stats(self) -> EngineStats:
        """Return state and counters."""

    def sleep(self) -> None:
        """Free the accelerator's memory for the trainer, if the hardware supports it."""

    def wake(self) -> None:
        """Take back the memory of the weights; where `sleep` freed it, requests are taken after the next load."""


def load_weights(engine: Engine, buckets: Iterable[Bucket], policy_version: int) -> str:
    """Load weights and serve them; return their checksum. Raises ValueError for weights of another model."""
    engine.begin_weights()
    for bucket in buckets:
        engine.load_bucket(bucket)
        del bucket  # before the next one comes
    checksum = engine.finish_weights()
    engine.serve(policy_version)
    return checksum
