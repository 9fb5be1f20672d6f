"""An engine that runs vLLM in the process of its caller.

The log-probabilities are of the distribution that was sampled from, temperature applied. top-p and top-k stay off: they
would cut the distribution that the trainer's ratios are computed for.

Import this module only after the variables of `vllm_environment` are set; `engines.create_engine` does both.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.v1.metrics.loggers import StatLoggerBase
from vllm.v1.metrics.stats import IterationStats, SchedulerStats

from longshore.checks.model_files import config_of, is_weight, weight_files
from longshore.checks.model_limits import language_part
from longshore_runtime.backends.engine_protocol import (
    Completion,
    EngineStats,
    FinishReason,
    GrowingResponse,
    LiveResponse,
    Request,
)
from longshore_runtime.backends.engine_spec import EngineSpec, EngineStartError
from longshore_runtime.backends.vllm_loading import OnLoaded
from longshore_runtime.backends.vllm_lora import lora_request
from longshore_runtime.backends.vllm_outputs import SampledTokens
from longshore_runtime.backends.vllm_start import has_work, reason, settle, start
from longshore_runtime.backends.vllm_update import begin_update, finish_update, load_arrays, load_shared
from longshore_runtime.clock import SystemClock
from longshore_runtime.weights.buckets import Receipt, checksums
from longshore_runtime.weights.shared import BroadcastGroup, SharedBucket
from longshore_runtime.weights.slices import Bucket


class VllmEngine:
    """Implements `Engine` on `LLMEngine`, vLLM's engine for callers that step it themselves."""

    def __init__(self, model: Path, spec: EngineSpec, on_loaded: OnLoaded = lambda num_bytes: None) -> None:
        """Load the checkpoint; raises EngineStartError with one sentence."""
        self._clock = SystemClock()
        self._counters = _Counters()
        self._stop_tokens = spec.stop_tokens
        self._lora = spec.lora
        self._returns_experts = spec.returns_experts
        self._num_updates = 0
        """Number of updates that have begun, by which vLLM tells one adapter from the next."""
        self._sleep_level = spec.options.sleep_level if spec.accelerator else 0
        self._parameter_names = _parameter_names(model)
        self._engine = start(model, spec, self._counters, on_loaded)
        self._responses: dict[str, GrowingResponse] = {}
        self._policy_version = -1
        self._receipt: Receipt | None = None
        """Receipt of the weights that are being loaded."""
        self._is_loaded = False
        """Whether they have been loaded but are not served yet."""
        self._num_steps = self._num_tokens = 0
        self._busy_s = 0.0
        self._asleep = False
        self._has_kv_cache = True

    def add(self, requests: Sequence[Request]) -> None:
        """Take requests into vLLM's waiting queue."""
        assert self._policy_version >= 0, "an engine serves only weights that were published to it"
        assert not self._asleep, "a sleeping engine takes no requests"
        assert self._has_kv_cache, "a woken engine takes requests after its weights"
        adapter = None if self._lora is None else lora_request(self._num_updates)
        for request in requests:
            response = GrowingResponse(request, self._policy_version)
            prompt = [*request.prompt_tokens.tolist(), *request.partial.tokens.tolist()]
            self._engine.add_request(
                request.request_id,
                {"prompt_token_ids": prompt},
                _sampling(response, self._stop_tokens),
                lora_request=adapter,
            )
            self._responses[request.request_id] = response

    def abort(self, request_ids: Sequence[str]) -> list[Completion]:
        """Stop requests, and return what they have sampled."""
        known = [request_id for request_id in request_ids if request_id in self._responses]
        self._engine.abort_request(known)
        completions = [self._end(request_id, FinishReason.ABORT) for request_id in known]
        self._settle_if_idle()
        return completions

    def step(self) -> list[Completion]:
        """Take what one iteration of vLLM's scheduler has sampled."""
        assert not self._asleep, "a sleeping engine does not step"
        if not self.has_work():
            return []
        started_s = self._clock.now_s()
        outputs = self._iterate()
        self._num_steps += 1
        ended = [completion for output in outputs if (completion := self._take(output)) is not None]
        self._settle_if_idle()
        self._busy_s += self._clock.now_s() - started_s
        return ended

    def has_work(self) -> bool:
        """Return whether any request is unfinished."""
        return bool(self._responses)

    def begin_weights(self, channel: BroadcastGroup | None = None) -> bool:
        """Prepare the running model for new values."""
        assert not self.has_work(), "weights change only while nothing runs"
        assert not self._asleep, "a sleeping engine takes no weights"
        self._policy_version, self._is_loaded = -1, False
        self._finish_update()
        self._num_updates += 1
        # Which layers an adapter has is known to the trainer; `finish_update` tells which of them vLLM has.
        self._receipt = Receipt() if self._lora is not None else Receipt(self._parameter_names, optional=_TIED)
        return all(self._engine.collective_rpc(begin_update, args=(channel, self._lora, self._num_updates)))

    def load_bucket(self, bucket: Bucket | SharedBucket) -> None:
        """Copy some values into the running model."""
        assert self._receipt is not None, "begin_weights comes first"
        if isinstance(bucket, SharedBucket):
            self._receipt.take(bucket.checksums)
            self._engine.collective_rpc(load_shared, args=(bucket,))
        else:
            self._receipt.take(checksums(bucket))
            self._engine.collective_rpc(load_arrays, args=(bucket,))

    def finish_weights(self) -> str:
        """Use the new values, and drop prefixes cached with old ones; return the checksum."""
        assert self._receipt is not None, "begin_weights comes first"
        try:
            loaded = self._receipt.complete()
        finally:
            old_layers = self._finish_update()
        if old_layers:
            kept = "kept old weights" if self._lora is None else "do not compute with the adapter"
            raise ValueError(f"{len(old_layers)} layers of vLLM {kept}, among them {', '.join(old_layers[:3])}")
        self._drop_prefixes()
        self._is_loaded = True
        return loaded

    def serve(self, policy_version: int) -> None:
        """Take requests for the new values; the KV cache is there again."""
        assert self._is_loaded, "finish_weights comes first"
        if not self._has_kv_cache:
            self._engine.wake_up(["kv_cache"])
            self._has_kv_cache = True
        self._policy_version, self._is_loaded = policy_version, False

    def live(self) -> list[LiveResponse]:
        """Return the lengths of running and waiting responses."""
        return [response.live for response in self._responses.values()]

    def stats(self) -> EngineStats:
        """Return state and counters."""
        num_running = min(self._counters.num_running, len(self._responses))
        return EngineStats(
            num_running=num_running,
            num_waiting=len(self._responses) - num_running,
            kv_usage=self._counters.kv_usage if self._responses else 0.0,
            kv_capacity_tokens=self._kv_capacity_tokens,
            num_preemptions=self._counters.num_preemptions,
            num_prompt_tokens=self._counters.num_prompt_tokens,
            num_cached_tokens=self._counters.num_cached_tokens,
            num_steps=self._num_steps,
            num_tokens=self._num_tokens,
            busy_s=self._busy_s,
            read_s=self._clock.now_s(),
            policy_version=self._policy_version,
        )

    def sleep(self) -> None:
        """Free GPU memory as far as the sleep level asks; level 2 also drops the weights."""
        assert not self.has_work(), "an engine sleeps only while nothing runs"
        self._finish_update()
        if self._sleep_level and not self._asleep:
            self._engine.sleep(self._sleep_level)
            self._has_kv_cache = False
        if self._sleep_level == 2:
            self._policy_version = -1
        self._asleep, self._is_loaded = True, False

    def wake(self) -> None:
        """Take the memory of the weights back; that of the KV cache follows when they are loaded.

        Loading needs memory besides the weights, and the KV cache takes what they leave.
        """
        if not self._asleep:
            return
        if self._sleep_level:
            self._engine.wake_up(["weights"])
        self._asleep = False
        self._drop_prefixes()

    @property
    def _kv_capacity_tokens(self) -> int:
        cache = self._engine.vllm_config.cache_config
        return cache.kv_cache_size_tokens or (cache.num_gpu_blocks or 0) * cache.block_size

    def _iterate(self) -> list[SampledTokens]:
        """Step until an iteration has ended: with asynchronous scheduling, the first step of all only begins one."""
        outputs: list[SampledTokens] = []
        before = self._counters.num_iterations
        while self._counters.num_iterations == before:
            assert has_work(self._engine), "vLLM knows the requests that are unfinished"
            outputs = self._engine.step()
        return outputs

    def _settle_if_idle(self) -> None:
        """Leave no step under way that could meet new weights, or memory that has been given away."""
        if not self.has_work():
            settle(self._engine)

    def _take(self, sampled: SampledTokens) -> Completion | None:
        response = self._responses[sampled.request_id]
        response.tokens.extend(sampled.token_ids)
        response.log_probs.extend(sampled.log_probs)
        assert len(response.tokens) == len(response.log_probs), "every token comes with its log-probability"
        if sampled.experts is not None:
            response.experts.extend(sampled.experts)
        self._num_tokens += len(sampled.token_ids)
        if sampled.finish_reason is None:
            return None
        return self._end(sampled.request_id, FinishReason(str(sampled.finish_reason)))

    def _end(self, request_id: str, reason: FinishReason) -> Completion:
        response = self._responses.pop(request_id)
        trajectory = response.trajectory
        if self._returns_experts and response.tokens:
            assert trajectory.experts is not None, "vLLM returns experts"
            assert len(trajectory.experts) == len(trajectory), "every token comes with the experts before it"
        return Completion(request_id, trajectory, reason, self._num_steps)

    def _finish_update(self) -> list[str]:
        """End the current update; return the names of layers that kept old weights."""
        if self._receipt is None:
            return []
        self._receipt = None
        return sorted({name for names in self._engine.collective_rpc(finish_update) for name in names})

    def _drop_prefixes(self) -> None:
        if not self._engine.reset_prefix_cache():
            raise RuntimeError("vLLM kept prefixes of old weights: some of its KV blocks are still in use")


class _Counters(StatLoggerBase):
    """Receives vLLM's statistics of every step."""

    def __init__(self) -> None:
        self.num_iterations = 0
        self.num_running = 0
        self.num_preemptions = 0
        self.num_prompt_tokens = 0
        self.num_cached_tokens = 0
        self.kv_usage = 0.0

    def __call__(self, config: VllmConfig, engine_index: int = 0) -> "_Counters":
        """Return this object: vLLM calls a factory for its loggers, and there is only one engine."""
        return self

    def record(
        self, scheduler_stats: SchedulerStats | None, iteration_stats: IterationStats | None, *_: Any, **__: Any
    ) -> None:
        if scheduler_stats is not None:
            self.num_iterations += 1
            self.num_running = scheduler_stats.num_running_reqs
            self.kv_usage = scheduler_stats.kv_cache_usage
            self.num_prompt_tokens += scheduler_stats.prefix_cache_stats.queries
            self.num_cached_tokens += scheduler_stats.prefix_cache_stats.hits
        if iteration_stats is not None:
            self.num_preemptions += iteration_stats.num_preempted_reqs

    def log_engine_initialized(self) -> None:
        """Do nothing."""


_TIED = {"lm_head.weight"}
"""Names of the output layer, which checkpoints of models with tied embeddings may carry or leave out."""


def _sampling(response: GrowingResponse, stop_tokens: Sequence[int]) -> SamplingParams:
    request = response.request
    return SamplingParams(
        temperature=request.temperature,
        # A resumed response must not repeat the random numbers that sampled its first part.
        seed=request.seed + response.num_kept,
        max_tokens=response.remaining_tokens,
        ignore_eos=request.ignores_end,
        stop_token_ids=[] if request.ignores_end else list(stop_tokens),
        logprobs=0,
        # Experts of earlier tokens are kept, with those of the weights that sampled them.
        routed_experts_prompt_start=response.num_routed,
        detokenize=False,
    )


def _parameter_names(model: Path) -> set[str]:
    files = weight_files(model)
    if not files:
        raise EngineStartError(f"model: {model.name!r} has no safetensors files; save the checkpoint in that format")
    names: set[str] = set()
    num_layers = language_part(config_of(model)).get("num_hidden_layers")
    for file in files:
        try:
            with safe_open(file, framework="np") as opened:
                names.update(name for name in opened.keys() if is_weight(name, num_layers))  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise EngineStartError(f"model: {model.name}/{file.name} cannot be read: {reason(error)}") from error
    return names
