"""The coordinator's side of a sharing group: when the job may use the GPUs, and what it measures of its turns.

A job needs the GPUs for one connected part of each step: to train, to publish, and to sample until every response is
there. It returns a recalled turn when that is over, at the latest before it trains. Without an operator no turn is
recalled, so the job goes on as if it did not share.
"""

import queue
import time
from collections.abc import Callable, Mapping
from typing import Protocol

import structlog

from longshore.api.runtime_status import RuntimeActivity
from longshore.api.sharing import RuntimeSharing
from longshore.policy.sharing_group import Claim, Grant, MemberTurns
from longshore_runtime.clock import Clock
from longshore_runtime.errors import ASKED_TO_STOP, Interrupted
from longshore_runtime.rollout.events import Event, StopRequested, TurnChanged

log = structlog.get_logger()


class Gpus(Protocol):
    """When the job may use the GPUs of its workers."""

    def need(self) -> None:
        """Return when the job may use them; raises Interrupted if the pod has to stop before."""

    def idle(self, sleep: Callable[[], None]) -> None:
        """Engines and trainers have nothing to do. `sleep` is called if others get the GPUs; `need` has to follow."""

    @property
    def are_away(self) -> bool:
        """Whether others may use them now."""

    @property
    def waited_s(self) -> float:
        """How long the job has waited for them since the last step ended."""

    def step_done(self) -> None:
        """A step has ended."""


class OwnGpus:
    """Implements `Gpus` for a job that shares none."""

    are_away = False
    waited_s = 0.0

    def need(self) -> None:
        """They are there."""

    def idle(self, sleep: Callable[[], None]) -> None:
        """They stay."""

    def step_done(self) -> None:
        """Nothing is measured."""


class TurnReport(Protocol):
    """Where the coordinator reports its turns."""

    @property
    def current_activity(self) -> RuntimeActivity | None:
        """What was reported last."""

    def activity(self, activity: RuntimeActivity) -> None:
        """Report what the coordinator does now."""

    def sharing(self, report: RuntimeSharing) -> None:
        """Report turns and measurements."""

    def turn_metrics(self, values: Mapping[str, float]) -> None:
        """Take the metrics of the step that is reported next."""


class SharedGpus:
    """Implements `Gpus` for a member of a sharing group. Used by the driver's thread only."""

    def __init__(
        self,
        events: "queue.SimpleQueue[Event]",
        clock: Clock,
        report: TurnReport,
        grant: Callable[[], Grant],
        before: RuntimeSharing,
    ) -> None:
        """`grant`: the newest that is known of this attempt. `before`: what the attempt has reported so far."""
        self._events = events
        self._clock = clock
        self._report = report
        self._grant = grant
        self._said = before
        self._turns = MemberTurns(Claim(before.asked, before.returned))
        self._needed_at_s: float | None = None
        """Since when the GPUs are used; None: they are not."""
        self._used_s = 0.0
        self._waited_s = 0.0
        self._step_ended_at_s: float | None = None
        """When the step before ended; None: this one includes the start."""

    def need(self) -> None:
        if self._needed_at_s is not None:
            return
        began_s = self._clock.now_s()
        if self._turns.is_asleep:
            self._turns = self._turns.asking()
            self._say()
        if not self._has_turn():
            self._wait()
        self._needed_at_s = self._clock.now_s()
        self._waited_s += self._needed_at_s - began_s

    def idle(self, sleep: Callable[[], None]) -> None:
        if self._needed_at_s is not None:
            self._used_s += self._clock.now_s() - self._needed_at_s
            self._needed_at_s = None
        self._turns = self._turns.read(self._grant())
        if not self._turns.may_use or not self._turns.is_recalled:
            return
        began_s = self._clock.now_s()
        sleep()
        self._turns = self._turns.returning()
        took_s = self._clock.now_s() - began_s
        log.info("GPUs returned", turn=self._turns.claim.returned, unix_s=_unix_s(), took_s=round(took_s, 3))
        self._said = self._said.model_copy(update={"switch_s": max(self._said.switch_s, round(took_s, 3))})
        self._say()

    @property
    def are_away(self) -> bool:
        return not self._turns.may_use

    @property
    def waited_s(self) -> float:
        return self._waited_s

    def step_done(self) -> None:
        now_s, used_s, waited_s = self._clock.now_s(), self._used_s, self._waited_s
        if self._step_ended_at_s is not None:
            self._said = with_step(self._said, now_s - self._step_ended_at_s - waited_s, used_s, waited_s)
            self._say()
        self._step_ended_at_s, self._used_s, self._waited_s = now_s, 0.0, 0.0
        self._report.turn_metrics(
            {
                "sharing/turn_s": used_s,
                "sharing/wait_s": waited_s,
                "sharing/switch_s": self._said.switch_s,
                "sharing/num_turns": self._turns.claim.asked,
            }
        )

    def _has_turn(self) -> bool:
        self._turns = self._turns.read(self._grant())
        return self._turns.may_use

    def _wait(self) -> None:
        """Wait for the turn; events about anything else stay in the queue."""
        before = self._report.current_activity
        self._report.activity(RuntimeActivity.WAIT_FOR_TURN)
        log.info("waiting for the GPUs", turn=self._turns.claim.asked)
        others: list[Event] = []
        try:
            while not self._has_turn():
                event = self._events.get()
                if isinstance(event, StopRequested):
                    raise Interrupted(ASKED_TO_STOP)
                if not isinstance(event, TurnChanged):
                    others.append(event)
        finally:
            for event in others:
                self._events.put(event)
        if before is not None:
            self._report.activity(before)
        log.info("GPUs granted", turn=self._turns.claim.asked, unix_s=_unix_s())

    def _say(self) -> None:
        claim = self._turns.claim
        self._said = self._said.model_copy(update={"asked": claim.asked, "returned": claim.returned})
        self._report.sharing(self._said)


def _unix_s() -> float:
    """Return the time of day, by which logs of several jobs can be compared."""
    return round(time.time(), 3)


def carried_over(earlier: RuntimeSharing | None) -> RuntimeSharing | None:
    """Return the first report of an attempt: an earlier one has measured the job, and had turns of its own."""
    return None if earlier is None else earlier.model_copy(update={"asked": 0, "returned": 0})


def with_step(before: RuntimeSharing, step_s: float, turn_s: float, wait_s: float) -> RuntimeSharing:
    """Return the report with one more step: means of its time and of its waits, and the longest turn."""
    count = before.num_steps + 1
    return before.model_copy(
        update={
            "num_steps": count,
            "step_s": round(before.step_s + (step_s - before.step_s) / count, 3),
            "turn_s": round(max(before.turn_s, turn_s), 3),
            "wait_s": round(before.wait_s + (wait_s - before.wait_s) / count, 3),
        }
    )
