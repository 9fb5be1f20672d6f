"""Measure the colocated judges of a job on the GPU of an engine, as in the job."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import ray
import structlog

from longshore.api.reward import RewardFunction
from longshore_runtime.cluster.placement import ActorPlacement, set_environment
from longshore_runtime.judge.errors import JudgeSetupError, NoReply, NoReplyYet
from longshore_runtime.profiling.figures import Figures
from longshore_runtime.rewards.kinds.judge import streamed_options

log = structlog.get_logger()

_QUESTION_TOKENS: Final = (64, 256, 1024, 4096, 16_384)
"""Lengths of questions, shortest first, because the longest may not fit."""
_REPEATS: Final = 3
_LIMIT_S: Final = 300.0
"""Seconds to measure one length, or to load the model."""


class _Probe:
    """Class of a Ray actor that holds one judge."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        set_environment(environment)
        self._judge: Any = None
        self._reply_tokens = 0

    def start(self, function: RewardFunction, output: str) -> None:
        """Load the model; raises JudgeSetupError."""
        from longshore_runtime.backends.streamed_lm.judge import StreamedJudge

        assert function.judge is not None, "only judges are measured"
        self._judge = StreamedJudge(streamed_options(function, output))
        self._reply_tokens = function.judge.max_tokens

    def measure(self, question_tokens: int) -> tuple[float, int | None] | None:
        """Measure seconds and bytes of GPU memory for one question; return None if it does not fit."""
        try:
            seconds, peak_bytes = self._judge.measure(question_tokens, self._reply_tokens)
        except (NoReply, NoReplyYet):
            return None
        return seconds, peak_bytes


_RemoteProbe: Any = ray.remote(num_cpus=0, max_restarts=0)(_Probe)


def measure_judges(
    functions: Sequence[RewardFunction],
    placement: ActorPlacement,
    output: str,
    max_tokens: int,
    figures: Figures,
    on_measured: Callable[[int, int, str], None] = lambda done, total, what: None,
) -> None:
    """Measure seconds and memory by the length of what a judge reads, for every function with a colocated judge.

    `max_tokens`: the most that a judge reads in the job. No judge of the job may run meanwhile. `on_measured` gets
    the judges that are done, all of them, and the next one.
    """
    for number, function in enumerate(functions):
        on_measured(number, len(functions), function.name)
        actor = placement.remote(_RemoteProbe)
        try:
            _measure(actor, function, output, max_tokens, figures)
        except (ray.exceptions.RayError, JudgeSetupError) as error:
            log.warning("judge left out", function=function.name, reason=(str(error).splitlines() or [""])[-1])
        finally:
            ray.kill(actor)


def _measure(actor: Any, function: RewardFunction, output: str, max_tokens: int, figures: Figures) -> None:
    ray.get(actor.start.remote(function, output), timeout=_LIMIT_S)
    ray.get(actor.measure.remote(_QUESTION_TOKENS[0]), timeout=_LIMIT_S)  # Warms up.
    for length in _QUESTION_TOKENS:
        for _ in range(_REPEATS):
            found = ray.get(actor.measure.remote(length), timeout=_LIMIT_S)
            if found is None:
                return
            figures.judge(function.name, length, *found)
        if length >= max_tokens:
            return
