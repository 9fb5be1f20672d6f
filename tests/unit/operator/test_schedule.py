"""When jobs are reconciled: passes end, a noisy job delays itself, and health is about passes and not about one job."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from longshore_operator import schedule as module
from longshore_operator.health import MAX_STALL_S
from longshore_operator.metrics import OperatorMetrics
from longshore_operator.schedule import PASS_BURST, PassResult, Schedule

Key = tuple[str, str]
VICTIM = ("quiet", "job")


class Passes:
    """Passes that do what a test says, and are counted."""

    def __init__(self) -> None:
        self.seen: list[Key] = []
        self.deleted: list[Key] = []
        self.does: Callable[[Key], Awaitable[PassResult]] = self._nothing
        self._began = asyncio.Condition()
        self.schedule = Schedule(
            self._pass, self.deleted.append, OperatorMetrics(), num_slots=4, has_one_namespace=False
        )

    async def _nothing(self, key: Key) -> PassResult:
        await asyncio.sleep(0)
        return PassResult(exists=True)

    async def _pass(self, key: Key) -> PassResult:
        async with self._began:
            self.seen.append(key)
            self._began.notify_all()
        return await self.does(key)

    def hold(self, held: Callable[[Key], bool]) -> asyncio.Event:
        """Passes of these jobs wait for the event."""
        slot = asyncio.Event()

        async def slow(key: Key) -> PassResult:
            if held(key):
                await slot.wait()
            return PassResult(exists=True)

        self.does = slow
        return slot

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60), self._began:
            await self._began.wait_for(condition)

    async def until_quiet(self) -> None:
        async with asyncio.timeout(60):
            while self.schedule.num_pending():  # noqa: ASYNC110 - passes end without telling anybody here
                await asyncio.sleep(0)


async def hangs(key: Key) -> PassResult:
    await asyncio.Event().wait()
    raise AssertionError("it never ends by itself")


@pytest.fixture
async def passes() -> AsyncIterator[Passes]:
    made = Passes()
    made.schedule.open()
    yield made
    await made.schedule.close()


async def test_a_job_that_changes_in_every_pass_neither_runs_twice_nor_is_unhealthy(passes: Passes) -> None:
    running: Counter[Key] = Counter()
    began_s: list[float] = []

    async def changed_meanwhile(key: Key) -> PassResult:
        began_s.append(time.monotonic())
        running[key] += 1
        assert running[key] == 1
        passes.schedule.wake(key)
        await asyncio.sleep(0)
        running[key] -= 1
        return PassResult(exists=True)

    passes.does = changed_meanwhile
    passes.schedule.wake(VICTIM)
    await passes.until(lambda: len(passes.seen) >= 20)
    # What is measured is the time of the pass that runs or is due, not how long the job has been restless.
    now_s = time.monotonic()
    assert passes.schedule.stalled_s(now_s) <= now_s - began_s[-2]
    passes.does = passes._nothing
    await passes.until_quiet()
    assert passes.schedule.stalled_s(time.monotonic() + 10 * MAX_STALL_S) == 0


async def test_a_noisy_job_is_looked_at_no_more_than_its_share(passes: Passes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PASSES_PER_S", 1e-6)

    async def changed_meanwhile(key: Key) -> PassResult:
        passes.schedule.wake(key)
        return PassResult(exists=True)

    passes.does = changed_meanwhile
    noisy = ("noisy", "job")
    passes.schedule.wake(noisy)
    await passes.until(lambda: passes.seen.count(noisy) >= PASS_BURST)
    passes.schedule.wake(VICTIM)
    await passes.until(lambda: VICTIM in passes.seen)
    await passes.until(lambda: passes.seen.count(VICTIM) >= PASS_BURST)
    assert passes.seen.count(noisy) == PASS_BURST


async def test_a_job_of_another_namespace_waits_for_one_pass_and_not_for_the_queue(passes: Passes) -> None:
    slot = passes.hold(lambda key: key[0] == "noisy")
    for index in range(200):
        passes.schedule.wake(("noisy", f"job-{index}"))
    passes.schedule.wake(VICTIM)
    await passes.until(lambda: VICTIM in passes.seen)
    assert len(passes.seen) == 3, "half of the slots are the most that a namespace has"
    slot.set()
    await passes.until_quiet()
    assert len(passes.seen) == 201


async def test_a_pass_that_hangs_is_given_up_and_tried_again(passes: Passes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PASS_LIMIT_S", 0.01)
    monkeypatch.setattr(module, "_FIRST_RETRY_S", 0.01)

    passes.does = hangs
    passes.schedule.wake(VICTIM)
    await passes.until(lambda: len(passes.seen) >= 2)


async def test_a_pass_that_ends_without_any_progress_elsewhere_is_noticed(passes: Passes) -> None:
    passes.does = hangs
    passes.schedule.wake(VICTIM)
    await passes.until(lambda: len(passes.seen) == 1)
    assert passes.schedule.stalled_s(time.monotonic() + MAX_STALL_S + 1) > MAX_STALL_S


async def test_a_job_that_is_gone_is_forgotten_unless_it_came_back_meanwhile(passes: Passes) -> None:
    async def deleted(key: Key) -> PassResult:
        if len(passes.seen) == 1:
            passes.schedule.wake(key)
        return PassResult(exists=False)

    passes.does = deleted
    passes.schedule.wake(VICTIM)
    await passes.until(lambda: len(passes.seen) == 2)
    await passes.until_quiet()
    assert passes.deleted == [VICTIM]


async def test_a_failure_is_tried_again_and_ends_nothing_else(passes: Passes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FIRST_RETRY_S", 0.01)

    async def fails(key: Key) -> PassResult:
        if key != VICTIM:
            raise RuntimeError("broken")
        return PassResult(exists=True)

    passes.does = fails
    passes.schedule.wake(("noisy", "job"))
    passes.schedule.wake(VICTIM)
    await passes.until(lambda: VICTIM in passes.seen and len(passes.seen) >= 3)


def listed(count: int) -> list[Key]:
    """Jobs in namespaces of their own."""
    return [(f"listed-{index}", "job") for index in range(count)]


async def test_a_job_that_changes_does_not_wait_for_jobs_that_are_only_listed(passes: Passes) -> None:
    slot = passes.hold(lambda key: key != VICTIM)
    for key in [*listed(200), VICTIM]:
        passes.schedule.catch_up(key)
    await passes.until(lambda: len(passes.seen) == 2)
    passes.schedule.wake(VICTIM)
    await passes.until(lambda: VICTIM in passes.seen)
    assert len(passes.seen) == 3, "half of the slots are the most that the others have"
    slot.set()
    await passes.until_quiet()
    assert Counter(passes.seen) == dict.fromkeys([*listed(200), VICTIM], 1), "none is forgotten or looked at twice"


@pytest.mark.parametrize("is_listed_first", [True, False])
async def test_a_job_that_changed_before_passes_begin_is_first_and_has_one_pass(is_listed_first: bool) -> None:
    made = Passes()
    if not is_listed_first:
        made.schedule.wake(VICTIM)
    for key in [*listed(200), VICTIM]:
        made.schedule.catch_up(key)
    if is_listed_first:
        made.schedule.wake(VICTIM)
    made.schedule.open()
    await made.until_quiet()
    assert made.seen[0] == VICTIM
    assert len(made.seen) == 201
    await made.schedule.close()


async def test_jobs_that_never_rest_do_not_keep_the_listed_ones_waiting(passes: Passes) -> None:
    restless = [(f"restless-{index}", "job") for index in range(8)]

    async def changed_meanwhile(key: Key) -> PassResult:
        if key in restless:
            passes.schedule.wake(key)
        await asyncio.sleep(0)
        return PassResult(exists=True)

    passes.does = changed_meanwhile
    for key in restless:
        passes.schedule.wake(key)
    for key in listed(40):
        passes.schedule.catch_up(key)
    await passes.until(lambda: set(listed(40)) <= set(passes.seen))
    assert len(passes.seen) < len(restless) * PASS_BURST / 2, "about half of the passes are theirs"


async def test_changes_that_may_wait_share_a_pass(passes: Passes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SETTLE_S", 0.05)
    for _ in range(10):
        passes.schedule.settle(VICTIM)
    assert passes.schedule.num_pending() == 0
    await passes.until(lambda: passes.seen == [VICTIM])
    await passes.until_quiet()
    assert passes.seen == [VICTIM]


async def test_a_change_that_may_not_wait_takes_those_that_may_with_it(passes: Passes) -> None:
    passes.schedule.settle(VICTIM)
    passes.schedule.wake(VICTIM)
    await passes.until_quiet()
    assert passes.seen == [VICTIM]
    assert passes.schedule._entries[VICTIM].settles_at_s is None


async def test_a_change_that_may_wait_is_not_lost_in_a_pass(passes: Passes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SETTLE_S", 0.05)

    async def changed_meanwhile(key: Key) -> PassResult:
        if len(passes.seen) == 1:
            passes.schedule.settle(key)
        return PassResult(exists=True, next_look_s=3_600)

    passes.does = changed_meanwhile
    passes.schedule.wake(VICTIM)
    await passes.until(lambda: len(passes.seen) == 2)


async def test_a_look_that_comes_earlier_is_not_put_off(passes: Passes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SETTLE_S", 3_600)

    async def looks_soon(key: Key) -> PassResult:
        return PassResult(exists=True, next_look_s=0.01)

    passes.does = looks_soon
    passes.schedule.wake(VICTIM)
    await passes.until_quiet()
    passes.schedule.settle(VICTIM)
    passes.does = passes._nothing
    await passes.until(lambda: len(passes.seen) >= 2)


async def test_an_operator_that_stops_ends_the_passes_that_run(passes: Passes) -> None:
    ended: list[type[BaseException]] = []

    async def watched(key: Key) -> PassResult:
        try:
            return await hangs(key)
        except BaseException as error:
            ended.append(type(error))
            raise

    passes.does = watched
    passes.schedule.wake(VICTIM)
    await passes.until(lambda: passes.seen == [VICTIM])
    async with asyncio.timeout(60):
        await passes.schedule.close()
    assert ended == [asyncio.CancelledError]
