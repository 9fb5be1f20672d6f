"""What users are told about engines that are gone."""

import signal

import pytest

from longshore_runtime.cluster.deaths import Death
from longshore_runtime.rollout.engine_handle import PROCESS_GONE
from longshore_runtime.rollout.engine_notices import EngineNotices

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
    notices.starts(3, 1, lambda: death)
    notices.lost(3, GONE)
    notices.lost(3, GONE)
    notices.close()
    assert given == [("EngineLost", f"engine 3 (worker 1) {what}")]


def test_engine_that_lives_is_not_asked_how_it_died() -> None:
    given: list[tuple[str, str]] = []
    notices = EngineNotices(lambda *notice: given.append(notice))
    notices.starts(0, 0, lambda: pytest.fail("its process lives"))
    notices.lost(0, "nothing was heard of the engine for 300 s")
    assert given == [("EngineLost", "engine 0 (worker 0) was lost: nothing was heard of the engine for 300 s")]
