"""One engine under test, with weights to publish and short ways to sample."""

import dataclasses
import itertools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import torch
from benchmarks.measured_process import free_port

from longshore_runtime.backends.engine_protocol import Completion, Engine, FinishReason, Request, load_weights
from longshore_runtime.backends.weight_sender import WeightSender
from longshore_runtime.trajectories.trajectory import EMPTY, Trajectory, token_ids
from longshore_runtime.weights.buckets import MAX_BUCKET_BYTES, buckets
from longshore_runtime.weights.shared import BroadcastGroup, SharedBucket
from longshore_runtime.weights.slices import Weights

MAX_NUM_SEQS = 8
NUM_KV_BLOCKS = 24
MAX_CONTEXT_TOKENS = 256

BUCKET_BYTES = 100_000
"""Size of the buckets that tests publish: the tiny model needs several, and they part its layers."""
SMALL_BUCKET_BYTES = 30_000
"""Most matrices of the tiny model, its embedding among them, need several of these."""

PROMPT = (10, 11, 12, 13)
CPU = torch.device("cpu")
_numbers = itertools.count()


@dataclasses.dataclass
class Harness:
    """An engine and what the tests need to know of it."""

    engine: Engine
    weights: Weights
    eos_id: int
    kv_block_tokens: int
    bucket_bytes: int = MAX_BUCKET_BYTES
    loaded_bytes: tuple[int, ...] = ()
    """What was reported while the engine started: bytes of the checkpoint that it had read."""

    def publish(self, policy_version: int = 0, weights: Weights | None = None) -> str:
        """Load weights, by default those of the checkpoint."""
        named = (self.weights if weights is None else weights).items()
        return load_weights(self.engine, buckets(named, self.bucket_bytes), policy_version)

    def publish_shared(
        self, policy_version: int, weights: Weights, num_ranks: int = 1, bucket_bytes: int | None = None
    ) -> str:
        """Have so many ranks of a trainer write weights to memory that the engine reads."""
        senders = []
        for _ in range(num_ranks):
            named = ((name, torch.tensor(values), None) for name, values in weights.items())
            senders.append(WeightSender(named, CPU, 2 * (bucket_bytes or self.bucket_bytes)))
        fill = partial(WeightSender.fill, in_bfloat16=self.engine.begin_weights())
        for parts in zip(*[iter(partial(fill, sender), None) for sender in senders], strict=True):
            self.engine.load_bucket(SharedBucket(parts))
        checksum = self.engine.finish_weights()
        for sender in senders:
            sender.close()
        self.engine.serve(policy_version)
        return checksum

    def publish_broadcast(self, policy_version: int, weights: Weights) -> str:
        """Have a trainer elsewhere send weights to the engine, which has one worker."""
        named = ((name, torch.tensor(values), None) for name, values in weights.items())
        sender = WeightSender(named, CPU, 2 * self.bucket_bytes, is_read=False)
        channel = BroadcastGroup("127.0.0.1", free_port(), size=2, first=1)
        with ThreadPoolExecutor(1) as trainer:
            joined = trainer.submit(sender.join, channel)
            self.engine.begin_weights(channel)
            joined.result()
            while (part := sender.fill()) is not None:
                sent = trainer.submit(sender.broadcast)
                self.engine.load_bucket(SharedBucket((dataclasses.replace(part, buffer=None),)))
                sent.result()
        checksum = self.engine.finish_weights()
        sender.close()
        self.engine.serve(policy_version)
        return checksum

    def other_weights(self) -> Weights:
        """Weights that sample differently."""
        random = np.random.default_rng(1)
        return {
            name: (values + 0.3 * random.standard_normal(values.shape)).astype(np.float32)
            for name, values in self.weights.items()
        }

    def finish(self, requests: Sequence[Request]) -> list[Completion]:
        """Add requests and step until all have ended; in the order of the requests."""
        self.engine.add(requests)
        ended = {completion.request_id: completion for completion in self.finish_rest()}
        return [ended[request.request_id] for request in requests]

    def finish_rest(self) -> list[Completion]:
        """Step until nothing runs."""
        ended: list[Completion] = []
        while self.engine.has_work():
            ended += self.engine.step()
        return ended

    def abort_after(self, request: Request, num_tokens: int) -> Completion:
        """Start a request and stop it once it has so many tokens."""
        self.engine.add([request])
        for _ in range(num_tokens):
            assert not self.engine.step(), "the response ended before it could be aborted"
        (aborted,) = self.engine.abort([request.request_id])
        assert aborted.finish_reason is FinishReason.ABORT
        return aborted


def values(completion: Completion) -> tuple[list[int], list[float]]:
    """Tokens and log-probabilities."""
    return completion.trajectory.tokens.tolist(), completion.trajectory.log_probs.tolist()


def request(
    prompt: Sequence[int] = PROMPT,
    *,
    max_tokens: int = 40,
    temperature: float = 1.0,
    seed: int = 7,
    partial: Trajectory = EMPTY,
) -> Request:
    """A request with an id of its own."""
    return Request(f"request-{next(_numbers)}", token_ids(prompt), max_tokens, temperature, seed, partial)


def requests(count: int, *, max_tokens: int = 40, temperature: float = 1.0) -> list[Request]:
    """Requests that differ in their seeds."""
    return [request(max_tokens=max_tokens, temperature=temperature, seed=seed) for seed in range(count)]
