"""Work in a thread of its own: who submits it never waits, and what is lost is counted and reported once."""

import threading

from longshore_runtime.telemetry.background import Background


def test_items_are_handled_in_their_order_and_all_of_them_before_it_closes() -> None:
    found: list[int] = []
    worker: Background[int] = Background("test", found.append, 100, lambda reason: None)
    for number in range(50):
        worker.give(number)
    worker.close()
    assert found == list(range(50))
    assert worker.num_lost == 0


def test_what_finds_the_queue_full_is_dropped_and_reported_once_and_nobody_waits() -> None:
    has_begun, may_end = threading.Event(), threading.Event()
    handled: list[int] = []
    reported: list[str] = []

    def handle(number: int) -> None:
        has_begun.set()
        may_end.wait()
        handled.append(number)

    worker = Background("test", handle, 2, reported.append)
    worker.give(0)
    has_begun.wait()
    for number in range(1, 6):
        worker.give(number)
    assert worker.num_lost == 3
    may_end.set()
    worker.close()
    assert (handled, reported) == ([0, 1, 2], ["it does not keep up with the job"])


def test_an_item_that_fails_does_not_end_the_later_ones() -> None:
    found: list[int] = []
    reported: list[str] = []

    def handle(number: int) -> None:
        if number < 2:
            raise OSError(f"no room for {number}\nmore")
        found.append(number)

    worker = Background("test", handle, 10, reported.append)
    for number in range(4):
        worker.give(number)
    worker.close()
    assert (found, worker.num_lost, reported) == ([2, 3], 2, ["no room for 0"])


def test_a_worker_that_hangs_does_not_keep_the_session_from_ending() -> None:
    never = threading.Event()
    worker: Background[int] = Background("test", lambda _: assert_set(never), 1, lambda reason: None)
    worker.give(0)
    worker.close(limit_s=0.05)
    worker.give(1)
    worker.close(limit_s=0.05)
    never.set()


def assert_set(event: threading.Event) -> None:
    assert event.wait(60)
