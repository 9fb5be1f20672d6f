"""The rollout of a step: the round that drives engines and rewards, and what happens while it runs."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from longshore.api.environment import Environment
from longshore.api.runtime_status import ProgressUnit
from longshore.policy.draws import Draw
from longshore.policy.progress import RoundProgress
from longshore.policy.rollout_pace import RolloutPace
from longshore.policy.round import ResponseId
from longshore.policy.round_policy import RoundPolicy
from longshore_runtime.backends.engine_protocol import Completion
from longshore_runtime.elastic.repurposing import Repurposing
from longshore_runtime.environments.pool import EnvironmentPool
from longshore_runtime.rollout.batch import RoundResult, ScoredGroup
from longshore_runtime.rollout.events import Event, GradientsDone, ReplicaLost, TeacherAnswered
from longshore_runtime.rollout.round_runner import NOTHING_KEPT, RoundObserver, RoundRequests, RoundRunner, request_seed
from longshore_runtime.step.parts import Parts
from longshore_runtime.step.taught_groups import TaughtGroups
from longshore_runtime.trainer.recovery import Recovery
from longshore_runtime.trainer.streaming import StreamedUpdate
from longshore_runtime.trainer.updates import StepWork


class RoundEpisodes:
    """Implements `round_runner.Environments` for one round."""

    def __init__(self, pool: EnvironmentPool, requests: RoundRequests) -> None:
        self._pool = pool
        self._requests = requests

    def has(self, draw: Draw) -> bool:
        return self._environment(draw) is not None

    def start(self, response: ResponseId) -> int:
        requests = self._requests
        seed = request_seed(requests.algorithm.seed, f"{requests.purpose}/environment", response)
        return self._pool.start(response, requests.records[response.draw.index], seed)

    def give_turn(self, number: int, completion: Completion) -> None:
        self._pool.give_turn(number, completion)

    def cancel(self, numbers: Sequence[int]) -> None:
        self._pool.cancel(numbers)

    def _environment(self, draw: Draw) -> Environment | None:
        return self._pool.environment_of(self._requests.records[draw.index].domain)


def run_round(
    parts: Parts,
    policy: RoundPolicy,
    requests: RoundRequests,
    observer: RoundObserver,
    *,
    draining: bool = False,
    kept: Mapping[ResponseId, Completion] = NOTHING_KEPT,
    repurposing: Repurposing | None = None,
    pace: RolloutPace | None = None,
    train_on: Callable[[ScoredGroup], None] = lambda group: None,
) -> RoundResult:
    """Run a round of draws of the prompts of these requests; the other arguments as of `RoundRunner`.

    Raises:
        UserError, Interrupted, TrainerLost: as `RoundRunner.run`.
    """
    parts.rewards.use(requests.records)
    runner = RoundRunner(
        policy,
        parts.engines,
        parts.rewards,
        parts.events,
        requests,
        parts.clock,
        observer,
        kept,
        None if repurposing is None else repurposing.milestones,
        pace,
        None if parts.environments is None else RoundEpisodes(parts.environments, requests),
        train_on,
    )
    if repurposing is not None:
        repurposing.begin(runner)
    result = runner.run(draining=draining)
    parts.rewards.rest()
    return result


OnProgress = Callable[[ProgressUnit, int, int], None]
"""Function that is called with the unit, how many are done, and how many there are in total."""
_REPORTED_SHARE: Final = 0.1
"""Share of the responses of an evaluation between two progress reports."""


class RunningStep:
    """Implements `round_runner.RoundObserver`."""

    def __init__(
        self,
        work: StepWork,
        repurposing: Repurposing | None,
        recovery: Recovery,
        on_progress: Callable[[RoundProgress], None],
        taught: TaughtGroups | None = None,
    ) -> None:
        self.work = work
        self.taught = taught
        self.repurposing = repurposing
        self._recovery = recovery
        self._on_progress = on_progress

    def progressed(self, progress: RoundProgress) -> None:
        self._on_progress(progress)

    def milestone(self, progress: RoundProgress) -> None:
        assert self.repurposing is not None, "only repurposing asks for milestones"
        self.repurposing.milestone(progress)

    def on_event(self, event: Event) -> None:
        match event:
            case ReplicaLost(reason=reason, generation=generation):
                self._recovery.lost(reason, generation)
            case GradientsDone():
                if isinstance(self.work, StreamedUpdate):  # Otherwise the event is of an earlier step.
                    self.work.gradients_done(event)
            case TeacherAnswered():
                if self.taught is not None:
                    self.taught.answered(event)
            case _ if self.repurposing is not None:
                self.repurposing.on_event(event)


class Evaluating:
    """Implements `round_runner.RoundObserver` for a round without training."""

    def __init__(self, recovery: Recovery, on_progress: OnProgress) -> None:
        self._recovery = recovery
        self._on_progress = on_progress
        self._num_reported = 0

    def progressed(self, progress: RoundProgress) -> None:
        done, total = progress.num_finished, progress.num_requests
        if done - self._num_reported >= _REPORTED_SHARE * total:
            self._num_reported = done
            self._on_progress(ProgressUnit.RESPONSES, done, total)

    def milestone(self, progress: RoundProgress) -> None:
        """Do nothing: engines do not retire in such a round."""

    def on_event(self, event: Event) -> None:
        if isinstance(event, ReplicaLost):
            self._recovery.lost(event.reason, event.generation)
