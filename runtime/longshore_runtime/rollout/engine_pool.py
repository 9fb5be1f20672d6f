"""All engines of a job behind one handle: they get weights together, and lost ones are restarted."""

import threading
from collections.abc import Collection, Mapping, Sequence
from typing import Final

import structlog

from longshore.api.pods import DEFAULT_GPU_POD_MEMORY, Workers
from longshore.record.facts import LanePlace
from longshore.rounds.engine_states import OUT_OF_ROUND, EngineEvent, EngineState, EngineStates
from longshore.rounds.messages import EngineJoined, EngineLost
from longshore_runtime.backends.engine_protocol import Engine, EngineStats, LiveResponse, Request
from longshore_runtime.backends.engine_spec import EngineSpec, EngineStartError
from longshore_runtime.cluster.actors import Check
from longshore_runtime.errors import EngineDied, TrainerLost, UserError, WeightsUnavailable, first_line
from longshore_runtime.rollout.engine_notices import EngineNotices, Notify, ignore
from longshore_runtime.rollout.events import Event, Events, WeightsLost
from longshore_runtime.rollout.fleet import (
    Fleet,
    FleetStart,
    Joining,
    answers,
    failures,
    put_to_sleep,
    require_possible,
)
from longshore_runtime.rollout.fleets import Fleets
from longshore_runtime.rollout.published import Delivered, Failure, PublishedWeights
from longshore_runtime.rollout.remote_engine import EngineHandle

log = structlog.get_logger()

_SLEEP_LIMIT_S: Final = 120.0
"""Time limit for falling asleep or waking, which copies weights between host and GPU in seconds."""
_ANSWER_LIMIT_S: Final = 60.0
"""Time limit for counters, which engines return at once, even during a step."""
_TAKES_WEIGHTS: Final = frozenset({EngineState.WAITING, EngineState.LOADING, EngineState.SERVING})


class EnginePool:
    """The engines of a job. Only those that have confirmed the current weights get requests.

    `EngineStates` decides which engines serve, which get weights, and whose loss is reported; the pool carries it out.

    Threads: the driver calls all methods; `release` and `live` may also be called from others. Each engine has a thread
    that reads its events, and a restarted engine has one that waits for its start (`_join`). These threads change
    states, too, so states are read and changed under the lock.

    Order of weights: an engine runs commands in the order in which they were sent. A restarted engine is sent weights
    under the lock, and only while they are the current ones, so that newer ones always come later.
    """

    def __init__(
        self,
        workers: Workers,
        spec: EngineSpec,
        model: str,
        output: str,
        events: Events,
        notify: Notify = ignore,
        check: Check = lambda: None,
    ) -> None:
        """Begin to start engines in all worker pods; `notify` is called for each that is lost.

        `check` is called while engines are awaited between two rounds; it raises to end the wait.
        """
        self._check = check
        self._workers, self._spec = workers, spec
        self._events = events
        self._notices = EngineNotices(notify, workers.memory_bytes(DEFAULT_GPU_POD_MEMORY))
        self._lock = threading.RLock()
        self._current: PublishedWeights | None = None
        self._stopped = False
        self.delivered: Delivered | None = None
        """Progress of the present delivery of weights, or None; any thread may read it."""
        self._joining = Joining()
        self._fleets = Fleets(workers, spec, model, output, self._notices, self._on_engine_event)
        self._fleet = self._fleets.new(spec.options.tensor_parallel_size)
        self._states = EngineStates(handle.engine for handle in self._fleet)

    @property
    def tp_size(self) -> int:
        """Tensor-parallel size of the engines."""
        return self._fleet.tp_size

    def engines_on(self, pods: Collection[int]) -> tuple[int, ...]:
        """Return the engines in these worker pods, also those that start again and may soon take requests."""
        with self._lock:
            return tuple(sorted(one.engine for one in self._fleet if not set(one.pods).isdisjoint(pods)))

    def pods_of(self, engine: int) -> tuple[int, ...]:
        """Return the worker pods of an engine."""
        return self._fleet[engine].pods

    def num_gpus_of(self, engine: int) -> int:
        """Return the GPUs of an engine; 1 in pods without GPUs."""
        assert engine in self._fleet
        return self._fleet.tp_size if self._workers.gpus_per_pod else 1

    def lane_places(self) -> tuple[LanePlace, ...]:
        """Return the places of the engines, by number."""
        with self._lock:
            engines = sorted((handle.engine, handle.pods, handle.places[0]) for handle in self._fleet)
        return tuple(LanePlace(engine, pods, first.component, first.gpus) for engine, pods, first in engines)

    def wait_for_all(self, check: Check | None = None) -> None:
        """Wait until every engine has started; raises UserError when one cannot, or what `check` raises meanwhile."""
        for handle in self._fleet:
            try:
                handle.wait_started(check=check)
            except EngineStartError as error:
                raise UserError(str(error)) from error
            except EngineDied as death:
                self._on_engine_event(EngineLost(handle.engine, str(death)))
            else:
                self._started(handle)

    def starting(self) -> FleetStart:
        """Return how far the start of the engines is; may be called from any thread."""
        return self._fleet.starting()

    def serving(self) -> Sequence[int]:
        """Return the engines that take requests."""
        with self._lock:
            return [engine for engine in self._states.of(EngineState.SERVING) if self._fleet[engine].alive]

    def add(self, engine: int, requests: Sequence[Request]) -> None:
        """Start requests; does not wait. An engine whose loss the round does not know yet is sent nothing."""
        with self._lock:
            assert self._states[engine] not in OUT_OF_ROUND, "an engine that has left the round takes no requests"
            if self._states[engine] is EngineState.SERVING:
                self._fleet[engine].add(requests)

    def abort(self, engine: int, request_ids: Sequence[str]) -> None:
        """Stop requests; does not wait."""
        self._fleet[engine].abort(request_ids)

    def stats(self) -> Mapping[int, EngineStats]:
        """Return the state of the engines that answer."""
        return answers({engine: self._fleet[engine].stats() for engine in self.serving()}, _ANSWER_LIMIT_S)

    def live(self, timeout_s: float) -> Mapping[int, list[LiveResponse]]:
        """Return the lengths of unfinished responses, of the engines that answer in time."""
        with self._lock:
            replies = {engine: self._fleet[engine].live() for engine in self.serving()}
        return answers(replies, timeout_s)

    def publish(self, weights: PublishedWeights) -> None:
        """Have every started engine load the weights and confirm their checksum.

        One that dies or has other weights is lost; one that could not fetch them waits for the next.

        Raises:
            TrainerLost: the weights are gone before any engine has loaded them.
        """
        with self._lock:
            assert not self._states.are_out_of_round, "sleeping engines take no weights"
            # From here on, an engine that joins asks for these weights, not for those before.
            self._current = weights
            engines = [self._fleet[one] for one in self._states.of(*_TAKES_WEIGHTS) if self._fleet[one].alive]
            self._states.change_all((handle.engine for handle in engines), EngineEvent.SENT)
        # Without the lock: a delivery takes seconds to minutes, and engines may be lost meanwhile.
        self.delivered = Delivered(len(engines))
        try:
            outcomes = weights.deliver(engines, self.delivered)
        except BaseException:
            with self._lock:
                for handle in engines:
                    self._answered(handle, weights, EngineEvent.FAILED)
            raise
        finally:
            self.delivered = None
        unavailable = [handle for handle, failure in outcomes if not self._has_weights(handle, weights, failure)]
        if any(handle.alive for handle in unavailable) and not self._states.of(EngineState.SERVING):
            raise TrainerLost("the published weights are gone, and so is their trainer")

    def sleep(self) -> None:
        """Put all engines to sleep, so that the trainers get the accelerators; engines that are starting start first.

        `wake` and `publish` have to follow before the next round.
        """
        if self._states.are_out_of_round:
            return
        # First out of the round, then asleep: no thread hands weights or requests to an engine that falls asleep.
        self._leave_round()
        self._put_to_sleep(list(self._fleet), _SLEEP_LIMIT_S)
        with self._lock:
            self._current = None  # The object store needs the room for the next weights.

    def release(self, engines: Collection[int], timeout_s: float) -> None:
        """Put idle engines to sleep until the next `wake`, and return when the trainers can have their GPUs.

        An engine that does not fall asleep within `timeout_s` is killed, which frees its memory, too. So is one that is
        starting in the same pod, because pods leave the rollout as a whole.
        """
        with self._lock:
            pods = {pod for engine in engines for pod in self.pods_of(engine)}
            in_same_pods = set(self.engines_on(pods))
            retiring = in_same_pods.difference(self._states.of(EngineState.SERVING)).union(engines)
            self._states.change_all(retiring, EngineEvent.LEFT)
            handles = [handle for handle in self._fleet if handle.engine in retiring]
        self._put_to_sleep(handles, timeout_s)

    def wake(self) -> None:
        """Give the accelerators back to all engines; `publish` has to follow before the next round."""
        with self._lock:
            self._current = None
            replies = [(handle, handle.command(Engine.wake)) for handle in self._fleet if handle.alive]
            for engine in self._states.wake():
                self._joining.begin(self._fleet.restart(engine), self._join)
        for handle, failure in failures(replies, _SLEEP_LIMIT_S):
            self._lose(handle, str(failure))

    def is_gone(self, engine: int) -> bool:
        """Return whether an engine was lost and has not been started again."""
        with self._lock:
            return engine in self._fleet and self._states[engine] in (EngineState.LOST, EngineState.MISSING)

    def replace(self, engine: int) -> None:
        """Restart a lost engine; EngineJoined follows when it serves. Its pod may have to come back first.

        An engine that is out of the round comes back with the next `wake` instead.
        """
        with self._lock:
            if self._stopped or engine not in self._fleet or self._states[engine] is not EngineState.LOST:
                return
            self._states.change(engine, EngineEvent.REPLACED)
            # A thread waits for the start, because the driver must go on with the round.
            self._joining.begin(self._fleet.restart(engine), self._join)

    def regroup(self, tp_size: int, timeout_s: float | None = None) -> None:
        """Replace the engines, between two rounds, by engines of another size, with the current weights if any.

        The old engines are put to sleep, which makes the way back quick.

        Raises:
            EngineStartError: engines of this size do not start within `timeout_s`; the old ones serve again, and
                the loss of any is reported.
        """
        if tp_size == self.tp_size:
            return
        require_possible(tp_size, self._workers)
        assert not any(one.num_running + one.num_waiting for one in self.stats().values()), "a round still runs"
        old = self._fleet
        self._leave_round()
        self._free_gpus_of(old)
        fleet = self._fleets.exchange(old, tp_size)
        try:
            self._serve_with(fleet, timeout_s, must_start=True)
        except EngineStartError as error:
            log.warning("the engines do not regroup", tp_size=tp_size, reason=str(error))
            self._fleets.take_back()
            fleet.stop()
            self._serve_with(old, None)
            raise
        finally:
            self._report_missing()

    def stop(self) -> None:
        """End all engines."""
        # Threads that wait for an engine see this before the engine ends, and report no loss.
        with self._lock:
            self._stopped = True
        self._notices.close()
        self._fleet.stop()
        self._fleets.stop()

    def _leave_round(self) -> None:
        """Take all engines out of the round, and wait for those that are about to join."""
        with self._lock:
            self._states.leave()
        self._joining.wait(self._check)

    def _free_gpus_of(self, fleet: Fleet) -> None:
        """Put a fleet to sleep if that frees memory for other engines, otherwise end it."""
        if self._spec.accelerator and not self._spec.options.sleep_level:
            fleet.stop()
        else:
            self._put_to_sleep(list(fleet), _SLEEP_LIMIT_S)

    def _serve_with(self, fleet: Fleet, timeout_s: float | None, *, must_start: bool = False) -> None:
        """Wake these engines, start missing ones, and publish the current weights to them.

        Raises:
            EngineStartError: none of them serves; with `must_start`, also if one cannot start.
        """
        with self._lock:
            self._fleet = fleet
            fleet.refill()
            alive = {handle.engine for handle in fleet if handle.alive}
            self._states.replace_all(alive, {handle.engine for handle in fleet} - alive)
        lost = fleet.activate(timeout_s, self._check)
        for engine, error in lost.items():
            self._notices.lost(engine, str(error))
        with self._lock:
            self._states.change_all(lost, EngineEvent.LOST)
            for engine in self._states.of(EngineState.LEFT_OUT):
                self._states.change(engine, EngineEvent.STARTED)
            for engine in self._states.of(EngineState.ASLEEP):
                self._states.change(engine, EngineEvent.WOKEN)
        for error in lost.values():
            if must_start and isinstance(error, EngineStartError):
                raise error
        if len(lost) == len(list(fleet)):
            raise EngineStartError(f"rollout.engine: no engine of {fleet.tp_size} GPUs starts: {error}")
        if self._current is not None:
            self.publish(self._current)
            if not self._states.of(EngineState.SERVING):
                raise EngineStartError(f"rollout.engine: no engine of {fleet.tp_size} GPUs loads the weights")

    def _report_missing(self) -> None:
        """Report engines that were lost between two rounds, so that the next round restarts them."""
        with self._lock:
            for engine in self._states.of(EngineState.MISSING):
                self._states.change(engine, EngineEvent.REPORTED)
                self._events.put(EngineLost(engine, "it was lost while the engines regrouped"))

    def _join(self, handle: EngineHandle) -> None:
        """Bring a restarted engine into the round; runs in a thread of its own."""
        try:
            self._bring_in(handle)
        except Exception as error:  # The round may wait for this engine alone, and learns only from here that it fails.
            log.exception("an engine cannot join", engine=handle.engine)
            self._lose(handle, first_line(error))

    def _bring_in(self, handle: EngineHandle) -> None:
        """Wait for a restarted engine and send it the current weights."""
        try:
            handle.wait_started()
        except (EngineDied, EngineStartError) as error:
            if self._is_current(handle):
                self._on_engine_event(EngineLost(handle.engine, str(error)))
            return
        self._started(handle)
        while (weights := self._lacks(handle)) is not None:
            try:
                # Takes seconds, so it runs without the lock; the loop checks again afterwards.
                copies = weights.stored()
            except (WeightsUnavailable, TrainerLost) as unavailable:
                self._cannot_join(handle, weights, str(unavailable))
                return
            reply = None
            with self._lock:
                if self._lacks(handle) is weights:
                    reply = copies.send(handle)
                    self._states.change(handle.engine, EngineEvent.SENT)
            if reply is not None:
                failure = copies.failure(reply)
                has_weights = self._has_weights(handle, weights, failure, joins=True)
                if not has_weights and isinstance(failure, WeightsUnavailable):
                    self._cannot_join(handle, weights, str(failure))
                return

    def _started(self, handle: EngineHandle) -> None:
        """Note that an engine has started, unless it has been lost or replaced meanwhile."""
        with self._lock:
            if self._is_current(handle):
                self._states.change(handle.engine, EngineEvent.STARTED)

    def _lacks(self, handle: EngineHandle) -> PublishedWeights | None:
        """Return the current weights if a started engine has not been sent them, otherwise None."""
        with self._lock:
            waits = self._is_current(handle) and self._states[handle.engine] is EngineState.WAITING
            return self._current if waits else None

    def _cannot_join(self, handle: EngineHandle, weights: PublishedWeights, reason: str) -> None:
        """Leave an engine without weights until the next ones; report if no engine has or gets the current weights."""
        log.warning("an engine cannot join", engine=handle.engine, reason=reason)
        with self._lock:
            if self._lacks(handle) is weights and not self._states.of(EngineState.LOADING) and not self.serving():
                self._events.put(WeightsLost(f"no engine has the weights, and they are gone: {reason}"))

    def _is_current(self, handle: EngineHandle) -> bool:
        with self._lock:
            return not self._stopped and any(handle is other for other in self._fleet)

    def _has_weights(
        self, handle: EngineHandle, weights: PublishedWeights, failure: Failure | None, *, joins: bool = False
    ) -> bool:
        """Return whether an engine has loaded weights. It then serves, unless newer ones come or it left the round."""
        if isinstance(failure, EngineDied):
            self._lose(handle, str(failure))
            return False
        with self._lock:
            event = EngineEvent.CONFIRMED if failure is None else EngineEvent.FAILED
            if self._answered(handle, weights, event) is EngineState.SERVING and joins:
                self._events.put(EngineJoined(handle.engine))
        if failure is not None:
            log.warning("no weights for an engine", engine=handle.engine, reason=str(failure))
        return failure is None

    def _answered(self, handle: EngineHandle, weights: PublishedWeights, event: EngineEvent) -> EngineState | None:
        """Change the state by an answer about weights; None: the weights or the engine have been replaced."""
        if self._current is not weights or not self._is_current(handle):
            return None
        return self._states.change(handle.engine, event)

    def _put_to_sleep(self, handles: Sequence[EngineHandle], timeout_s: float) -> None:
        killed = put_to_sleep(handles, timeout_s, self._notices)
        with self._lock:
            self._states.change_all((handle.engine for handle in killed), EngineEvent.LOST)

    def _lose(self, handle: EngineHandle, reason: str) -> None:
        """Stop an engine that failed, and report it."""
        if handle.stop() and self._is_current(handle):
            self._on_engine_event(EngineLost(handle.engine, reason))

    def _on_engine_event(self, event: Event) -> None:
        """Pass an event of an engine to the driver; called from the engines' threads.

        The loss of an engine that is out of the round is not passed on: the engine comes back with the next `wake`.
        """
        with self._lock:
            if isinstance(event, EngineLost):
                self._notices.lost(event.engine, event.reason)
                if event.engine not in self._fleet:
                    return
                if not self._states.lose(event.engine):
                    log.warning("an engine is gone that did not serve", engine=event.engine, reason=event.reason)
                    return
            self._events.put(event)
