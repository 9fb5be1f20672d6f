"""Measure how long the decode steps of the engines of a round take, and replay its rest with other engines.

Engines tell their steps with the responses that leave them. A request gains a token in each step of its engine, so the
steps that it still makes after a milestone say what it brings with it to any other engine.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import groupby, pairwise
from math import inf

from longshore.api.round_status import RoundKind
from longshore.policy.decode_rate import DecodeRate, DecodeSteps
from longshore.policy.engine_load import EngineLoad
from longshore.policy.round import ResponseId


@dataclass(frozen=True)
class TimedSteps:
    """Decode steps of one engine with the same requests, and their time."""

    steps: DecodeSteps
    seconds: float


@dataclass(frozen=True)
class _Moment:
    at_s: float
    """Time in seconds on the driver's clock."""
    step: int
    load: EngineLoad | None = None
    """Load with the time on the engine's clock; None: it is not known."""


@dataclass
class _Stint:
    """A request on an engine, after the milestone."""

    engine: int
    begin_s: float
    end_step: int | None = None
    """Step at which it ended; None: it still runs."""
    has_finished: bool = False


@dataclass(frozen=True)
class _Begun:
    """A request that came to an engine."""

    at_s: float
    """Minus infinity: before the milestone."""
    end_step: int | None


@dataclass(frozen=True, order=True)
class _Replayed:
    """A request after the milestone, wherever it runs."""

    num_steps: int
    has_finished: bool


class RolloutPace:
    """One object per round. Times are those of the driver's clock unless it says otherwise."""

    def __init__(self) -> None:
        self._moments: dict[int, list[_Moment]] = {}
        """Moments of each engine, in their order."""
        self._engine_of: dict[ResponseId, int] = {}
        """Engines of requests that run."""
        self._milestone_s: float | None = None
        self._ended_s = 0.0
        self._stints: dict[ResponseId, list[_Stint]] = {}
        """Stints of requests that ran at the milestone, or were launched later."""
        self._capacity_tokens = 0
        self._is_disturbed = False
        self.timed: list[TimedSteps] = []
        """Timed steps, as long as no engine has been lost."""
        self._spreads_groups = False
        self.has_repurposed = False
        """Whether engines have left."""
        self.leaving: frozenset[int] = frozenset()
        """Engines that have left, or would have at the first milestone."""

    def begun(self, kind: RoundKind, steps: Mapping[int, int], kv_capacity_tokens: int, now_s: float) -> None:
        """Begin the round with these engines, their steps so far, and the tokens that the KV cache of each holds."""
        self._spreads_groups = kind is RoundKind.LONG  # As the router does.
        self._moments = {engine: [_Moment(now_s, step)] for engine, step in steps.items()}
        self._capacity_tokens = kv_capacity_tokens

    def placed(self, engine: int, responses: Iterable[ResponseId], now_s: float) -> None:
        """Note that an engine is given requests."""
        for response in responses:
            self._engine_of[response] = engine
            if self._milestone_s is not None:
                self._stints.setdefault(response, []).append(_Stint(engine, now_s))

    def left(
        self,
        engine: int,
        steps: Mapping[ResponseId, int],
        finished: Collection[ResponseId],
        load: EngineLoad,
        now_s: float,
        turned: Collection[ResponseId] = (),
    ) -> None:
        """Note that requests left an engine at these steps, some because they `finished`.

        `load` is what remains on the engine after the last step. Of those that finished, some only `turned`: episodes.
        """
        for response, step in steps.items():
            self._engine_of.pop(response, None)
            stints = self._stints.get(response)
            if stints and stints[-1].engine == engine:
                stints[-1].end_step = step
                stints[-1].has_finished = response in finished and response not in turned
        if steps:
            self._observed(engine, _Moment(now_s, max(steps.values()), load if finished else None), len(steps))
        if any(response not in turned for response in finished):
            self._ended_s = now_s

    def episode_ended(self, response: ResponseId, now_s: float) -> None:
        """Note that the environment of an episode has ended it, after its last turn had left its engine."""
        self._ended_s = now_s
        if stints := self._stints.get(response):
            stints[-1].has_finished = True

    def milestone(self, now_s: float) -> None:
        """Begin the rest of the round; where there are several milestones, with the first."""
        if self._milestone_s is None:
            self._begin_rest(now_s)

    def engine_lost(self) -> None:
        """Note that an engine is gone: its requests are sampled again, so the time of the rest says nothing."""
        self._is_disturbed = True

    def engines_left(self, engines: Iterable[int], now_s: float) -> None:
        """Begin the rest of the round with fewer engines; the requests of the others are still to be moved."""
        self.has_repurposed, self.leaving = True, frozenset(engines)
        self._begin_rest(now_s)

    def num_running(self) -> Counter[int]:
        """Return requests that run now, by engine."""
        return Counter(self._engine_of.values())

    @property
    def rest_s(self) -> float:
        """Seconds from the milestone until the last request that the batch waited for finished.

        0 without a milestone, and where an engine was lost.
        """
        return 0.0 if self._milestone_s is None or self._is_disturbed else max(0.0, self._ended_s - self._milestone_s)

    def replayed_s(self, rate: DecodeRate, leaving: Collection[int] = ()) -> float:
        """Return what the rest of the round takes without these engines: their requests go on where the fewest run."""
        loads: dict[int, list[_Replayed]] = {engine: [] for engine in self._moments if engine not in leaving}
        if not loads:
            return 0.0
        moved: defaultdict[object, list[_Replayed]] = defaultdict(list)
        step_at = cache(partial(self._step_at, rate, self._begun_on_engines()))
        for response, stints in sorted(self._stints.items()):
            num_steps, home = sum(self._num_steps(step_at, stint) for stint in stints), stints[0].engine
            replayed = _Replayed(num_steps, stints[-1].has_finished)
            if home in loads:
                loads[home].append(replayed)
            else:
                moved[response if self._spreads_groups else response.draw].append(replayed)
        for together in moved.values():
            min(loads.values(), key=len).extend(together)
        tokens = self._tokens_per_request()
        return max(self._engine_s(rate, of, tokens) for of in loads.values())

    def _begin_rest(self, now_s: float) -> None:
        self._milestone_s = now_s
        self._stints = {response: [_Stint(engine, now_s)] for response, engine in self._engine_of.items()}

    def _observed(self, engine: int, now: _Moment, num_ended: int) -> None:
        moments = self._moments.setdefault(engine, [])
        last = moments[-1] if moments else None
        if last is not None and now.step < last.step:
            moments.clear()  # The engine has begun again.
        moments.append(now)
        if last is None or last.load is None or now.load is None or now.step <= last.step or self.has_repurposed:
            return  # Prompts were computed, or trainers may slow the engine down.
        if last.load.num_waiting or now.load.num_waiting or not last.load.num_running:
            return  # Requests came in between, and their prompts were computed.
        usage = (last.load.kv_usage + now.load.kv_usage) / 2
        steps = DecodeSteps(now.step - last.step, now.load.num_running + num_ended, usage)
        self.timed.append(TimedSteps(steps, now.load.at_s - last.load.at_s))

    def _num_steps(self, step_at: Callable[[int, float], float], stint: _Stint) -> int:
        end_step = step_at(stint.engine, self._ended_s) if stint.end_step is None else stint.end_step
        return max(0, round(end_step - step_at(stint.engine, stint.begin_s)))

    def _step_at(self, rate: DecodeRate, begun: Mapping[int, Sequence[_Begun]], engine: int, at_s: float) -> float:
        """Return the step of an engine at `at_s`: the last known one, advanced at its rate, at most the next one."""
        moments = self._moments.get(engine)
        if not moments:
            return 0.0
        after = bisect_right(moments, at_s, key=lambda moment: moment.at_s)
        if after == 0:
            return moments[0].step
        last, following = moments[after - 1], moments[after] if after < len(moments) else None
        if last.load is None:
            if following is None:
                return last.step
            share = _share_of_steps(rate, begun[engine], last, following, at_s)
            return last.step + share * (following.step - last.step)
        if last.load.num_running == 0:
            return last.step
        step = last.step + (at_s - last.at_s) / rate.seconds(DecodeSteps(1, last.load.num_running, last.load.kv_usage))
        return step if following is None else min(step, following.step)

    def _begun_on_engines(self) -> Mapping[int, Sequence[_Begun]]:
        """Return the requests of every engine, in the order in which they came."""
        begun: defaultdict[int, list[_Begun]] = defaultdict(list)
        for stints in self._stints.values():
            for index, stint in enumerate(stints):
                ran_before = index == 0 and stint.begin_s == self._milestone_s
                begun[stint.engine].append(_Begun(-inf if ran_before else stint.begin_s, stint.end_step))
        for on_engine in begun.values():
            on_engine.sort(key=lambda one: one.at_s)
        return begun

    def _tokens_per_request(self) -> float:
        """Return the tokens that requests held at the milestone."""
        assert self._milestone_s is not None
        loads = []
        for moments in self._moments.values():
            after = bisect_right(moments, self._milestone_s, key=lambda moment: moment.at_s)
            loads += [moment.load for moment in moments[max(0, after - 1) : after] if moment.load is not None]
        num_running = sum(load.num_running for load in loads)
        return self._capacity_tokens * sum(load.kv_usage for load in loads) / num_running if num_running else 0.0

    def _engine_s(self, rate: DecodeRate, requests: Sequence[_Replayed], tokens_per_request: float) -> float:
        """Return the seconds until the last of these requests on an engine finishes; nobody waits for aborted ones."""
        now_s = finished_s = 0.0
        done, num_running = 0, len(requests)
        for num_steps, ending in groupby(sorted(requests), key=lambda one: one.num_steps):
            tokens = num_running * (tokens_per_request + (done + num_steps) / 2)
            usage = min(1.0, tokens / self._capacity_tokens) if self._capacity_tokens else 0.0
            now_s += rate.seconds(DecodeSteps(num_steps - done, num_running, usage))
            have_finished = [one.has_finished for one in ending]
            finished_s = now_s if any(have_finished) else finished_s
            done, num_running = num_steps, num_running - len(have_finished)
        return finished_s


def _share_of_steps(rate: DecodeRate, begun: Sequence[_Begun], last: _Moment, following: _Moment, at_s: float) -> float:
    """Return the share of an engine's steps between two moments that it had made by then.

    No request leaves between two moments, but steps get longer with every one that comes.
    """
    begins_s = [one.at_s for one in begun if one.end_step is None or one.end_step >= following.step]

    def num_steps(until_s: float) -> float:
        """Return the number of steps in proportion to the time."""
        bounds_s = [last.at_s, *(begin_s for begin_s in begins_s if last.at_s < begin_s < until_s), until_s]
        return sum(
            # Of a first round with hardly a step, the rate may say that only a cache takes time: steps are alike then.
            (end_s - begin_s) / (rate.seconds(DecodeSteps(1, running, 0.0)) or 1.0)
            for begin_s, end_s in pairwise(bounds_s)
            if (running := bisect_right(begins_s, begin_s))
        )

    total = num_steps(following.at_s)
    return num_steps(at_s) / total if total else 1.0
