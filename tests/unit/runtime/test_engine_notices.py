"""What users are told about engines that are gone."""

import signal
import threading

import pytest

from longshore_runtime.cluster.deaths import Death
from longshore_runtime.rollout.engine_notices import EngineNotices
from longshore_runtime.rollout.engine_replies import PROCESS_GONE

GONE = f"{PROCESS_GONE} (ActorDiedError)"


@pytest.mark.parametrize(
    ("death", "what"),
    [
        (Death(7, -signal.SIGSEGV, 1 << 30), "was killed by signal 11 (SIGSEGV) after using 1.0 GiB"),
        (
            Death(7, -signal.SIGKILL, 3 << 30),
            "was killed by signal 9 (SIGKILL) after using 3.0 GiB: probably out of memory. "
            "Raise workers.resources.memory (4.0 GiB)",
        ),
        (None, f"was lost: {GONE}"),
    ],
    ids=["crash", "memory", "unknown"],
)
def test_notice_of_a_dead_engine_has_the_cause_that_its_pod_knows(death: Death | None, what: str) -> None:
    given: list[tuple[str, str]] = []
    notices = EngineNotices(lambda *notice: given.append(notice), pod_memory_bytes=4 << 30)
    notices.starts(3, (1,), lambda: None if death is None else (1, death))
    notices.lost(3, GONE)
    notices.lost(3, GONE)
    notices.close()
    assert given == [("EngineLost", f"engine 3 (worker 1) {what}")]


@pytest.mark.parametrize(
    ("found", "notice"),
    [
        ((2, Death(7, -signal.SIGSEGV, 1 << 30)), "engine 3 (worker 2) was killed by signal 11 (SIGSEGV) after using"),
        (None, f"engine 3 (workers 1, 2) was lost: {GONE} in worker 2"),
    ],
    ids=["process", "pod"],
)
def test_notice_of_an_engine_in_several_pods_names_the_one_that_was_lost(
    found: tuple[int, Death] | None, notice: str
) -> None:
    given: list[str] = []
    notices = EngineNotices(lambda reason, message: given.append(message))
    notices.starts(3, (1, 2), lambda: found)
    notices.lost(3, f"{GONE} in worker 2")
    notices.close()
    assert len(given) == 1 and given[0].startswith(notice)


def test_engine_that_lives_is_not_asked_how_it_died() -> None:
    given: list[tuple[str, str]] = []
    notices = EngineNotices(lambda *notice: given.append(notice))
    notices.starts(0, (0,), lambda: pytest.fail("its process lives"))
    notices.lost(0, "nothing was heard of the engine for 300 s")
    assert given == [("EngineLost", "engine 0 (worker 0) was lost: nothing was heard of the engine for 300 s")]


def test_cause_that_cannot_be_asked_for_still_gives_a_notice() -> None:
    given: list[tuple[str, str]] = []

    def fail() -> tuple[int, Death] | None:
        raise ConnectionError("Ray has gone")

    notices = EngineNotices(lambda *notice: given.append(notice))
    notices.starts(0, (2,), fail)
    notices.lost(0, GONE)
    notices.close()
    assert given == [("EngineLost", f"engine 0 (worker 2) was lost: {GONE}")]


def test_closing_waits_for_every_cause_that_is_asked_for() -> None:
    """Whichever thread has noticed the loss, and while others still begin."""
    given: list[tuple[str, str]] = []
    notices = EngineNotices(lambda *notice: given.append(notice))
    num_engines, begun = 200, threading.Barrier(3)
    for engine in range(num_engines):
        notices.starts(engine, (0,))

    def lose(first: int) -> None:
        begun.wait()
        for engine in range(first, num_engines, 2):
            notices.lost(engine, GONE)

    threads = [threading.Thread(target=lose, args=(first,)) for first in range(2)]
    for thread in threads:
        thread.start()
    begun.wait()
    notices.close()  # Engines that are lost from now on are stopped on purpose.
    num_given = len(given)
    for thread in threads:
        thread.join()
    assert len(given) == num_given
