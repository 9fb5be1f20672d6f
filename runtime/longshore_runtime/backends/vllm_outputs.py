"""Read what vLLM's scheduler returns from a step, without the processing that servers of text need."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from vllm.v1.engine import EngineCoreEventType, EngineCoreOutput, EngineCoreRequest, FinishReason
from vllm.v1.metrics.stats import IterationStats, SchedulerStats

from longshore_runtime.trajectories.trajectory import Experts


class SampledTokens(NamedTuple):
    """Tokens of one request from one step."""

    request_id: str
    token_ids: list[int]
    log_probs: list[float]
    finish_reason: FinishReason | None
    experts: Experts | None
    """Experts of the tokens that are new to the caller, up to the one before the last sampled."""


@dataclass(frozen=True)
class _Processed:
    """Result that vLLM's engine expects of its output processor after a step."""

    request_outputs: list[SampledTokens]
    reqs_to_abort: Sequence[str] = ()


class OutputReader:
    """Takes the place of vLLM's `OutputProcessor` in its engine, whose `step` then returns `SampledTokens`.

    vLLM's own builds an object with text, log-probabilities by token and statistics for every token of every request,
    in a single thread: about a third of the time of a step with many requests, seen on CPUs with a tiny model.
    """

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        """Names of requests by the names that vLLM gives them."""
        self._internal: dict[str, str] = {}
        """Names that vLLM gives to requests, by the requests' own names."""

    def add_request(self, request: EngineCoreRequest, *_: Any) -> None:
        """Expect outputs of a request."""
        assert request.external_req_id is not None, "vLLM has named the request"
        assert request.external_req_id not in self._internal, "requests have names of their own"
        self._names[request.request_id] = request.external_req_id
        self._internal[request.external_req_id] = request.request_id

    def abort_requests(self, request_ids: Iterable[str], internal: bool) -> list[str]:
        """Forget requests; return those that there were, by the names that vLLM gives them."""
        assert not internal, "requests are aborted by their own names"
        known = [self._internal[request_id] for request_id in request_ids if request_id in self._internal]
        for name in known:
            self._forget(name)
        return known

    def process_outputs(
        self, outputs: Iterable[EngineCoreOutput], *, iteration_stats: IterationStats | None, **_: Any
    ) -> _Processed:
        """Return the tokens of requests that have not been aborted."""
        sampled = []
        for output in outputs:
            if (request_id := self._names.get(output.request_id)) is None:
                continue
            if output.events and iteration_stats is not None:
                iteration_stats.num_preempted_reqs += _num_preemptions(output)
            log_probs = [] if output.new_logprobs is None else output.new_logprobs.logprobs[:, 0].tolist()
            sampled.append(
                SampledTokens(request_id, output.new_token_ids, log_probs, output.finish_reason, output.routed_experts)
            )
            if output.finish_reason is not None:
                self._forget(output.request_id)
        return _Processed(sampled)

    def update_scheduler_stats(self, stats: SchedulerStats | None) -> None:
        """Do nothing: they concern adapters, and models of one kind have none."""

    def has_unfinished_requests(self) -> bool:
        """Return whether outputs are still to come."""
        return bool(self._names)

    def get_num_unfinished_requests(self) -> int:
        """Return the number of requests of which outputs are still to come."""
        return len(self._names)

    def _forget(self, name: str) -> None:
        del self._internal[self._names.pop(name)]


def _num_preemptions(output: EngineCoreOutput) -> int:
    return sum(event.type == EngineCoreEventType.PREEMPTED for event in output.events or ())
