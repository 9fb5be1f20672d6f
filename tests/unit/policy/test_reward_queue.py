"""The order in which responses are scored."""

from hypothesis import given
from hypothesis import strategies as st

from longshore.policy.draws import Draw
from longshore.policy.reward_queue import MAX_EARLY_PER_WORKER, RewardQueue, ScoreTask
from longshore.policy.round import ResponseId


def task(draw: int, index: int = 0, function: str = "maths") -> ScoreTask:
    return ScoreTask(1, ResponseId(Draw(0, draw), index), function)


def queue(num_workers: int = 1, **budgets: int) -> RewardQueue:
    return RewardQueue(num_workers, budgets, {"maths": 2, "code": 0})


def test_responses_are_scored_early_in_the_order_in_which_they_finished() -> None:
    early = queue()
    early.submit([task(3), task(1)], 0.0)
    assert early.start(0.0) == (task(3),)
    early.finished(task(3))
    assert early.start(1.0) == (task(1),)


def test_what_a_served_group_waits_for_goes_first() -> None:
    mixed = queue()
    mixed.submit([task(1), task(2), task(3)], 0.0)
    mixed.need([task(3), task(4)], 1.0)
    order = []
    for _ in range(4):
        (started,) = mixed.start(2.0)
        order.append(started.response.draw.index)
        mixed.finished(started)
    assert order == [3, 4, 1, 2]


def test_a_function_never_holds_more_workers_than_its_budget() -> None:
    slow = queue(3, code=1)
    slow.need([task(1, function="code"), task(2, function="code"), task(3)], 0.0)
    assert slow.start(0.0) == (task(1, function="code"), task(3))
    slow.finished(task(1, function="code"))
    assert slow.start(0.0) == (task(2, function="code"),)


def test_early_work_is_bounded_and_dropped_work_is_scored_when_its_group_is_served() -> None:
    full = queue()
    tasks = [task(number) for number in range(MAX_EARLY_PER_WORKER + 3)]
    full.submit(tasks, 0.0)
    assert full.depth == MAX_EARLY_PER_WORKER
    full.need(tasks[-1:], 1.0)
    assert full.start(1.0) == (tasks[-1],)


def test_scores_that_nobody_wants_any_longer_are_not_computed() -> None:
    dropped = queue()
    dropped.submit([task(1), task(2)], 0.0)
    dropped.drop([Draw(0, 1)])
    assert dropped.start(0.0) == (task(2),)


def test_a_fault_is_retried_up_to_the_limit_and_then_given_up() -> None:
    faulty = queue()
    faulty.need([task(1)], 0.0)
    outcomes = []
    while faulty.start(0.0):
        fault = faulty.faulted(task(1))
        outcomes.append((fault.retries, fault.wait_s))
        if fault.retries:
            faulty.submit([task(1)], 1.0)
    assert outcomes == [(True, 0.5), (True, 1.0), (False, 2.0)]


def test_a_needed_task_that_met_a_fault_stays_needed() -> None:
    faulty = queue()
    faulty.need([task(1)], 0.0)
    faulty.submit([task(2)], 0.0)
    assert faulty.start(0.0) == (task(1),)
    assert faulty.faulted(task(1)).retries
    faulty.submit([task(1)], 0.5)
    assert faulty.start(0.5) == (task(1),)


def test_what_waits_at_the_end_of_a_round_is_not_scored_in_the_next() -> None:
    over = queue(2)
    over.submit([task(1), task(2), task(3)], 0.0)
    over.need([task(4)], 0.0)
    running = over.start(0.0)
    over.clear()
    assert over.depth == 0
    assert over.start(1.0) == ()
    for one in running:
        over.finished(one)
    assert over.start(2.0) == ()
    over.submit([task(3)], 3.0)
    assert over.start(3.0) == (task(3),)


def test_the_longest_wait_is_that_of_what_is_needed() -> None:
    waiting = queue()
    waiting.submit([task(1)], 0.0)
    waiting.need([task(2)], 4.0)
    assert waiting.oldest_wait_s(10.0) == 6.0
    assert waiting.depth == 2


@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.sampled_from("sndef"), st.integers(0, 5), st.integers(0, 2)), max_size=60),
)
def test_no_task_is_lost_doubled_or_run_beyond_the_workers(num_workers: int, steps: list[tuple[str, int, int]]) -> None:
    tasks = queue(num_workers, code=1)
    needed: set[ScoreTask] = set()
    done: set[ScoreTask] = set()
    running: list[ScoreTask] = []
    for action, draw, index in steps:
        one = task(draw, index, "code" if index == 2 else "maths")
        match action:
            case "s" if one not in done:
                tasks.submit([one], 0.0)
            case "n" if one not in done:
                tasks.need([one], 0.0)
                needed.add(one)
            case "d":
                tasks.drop([Draw(0, draw)])
                needed = {other for other in needed if other.response.draw != Draw(0, draw)}
            case "e" if running:
                done.add(running[0])
                tasks.finished(running.pop(0))
            case "f" if running and tasks.faulted(running[0]).retries:
                tasks.submit([running.pop(0)], 0.0)
            case "f" if running:
                done.add(running.pop(0))
        running += tasks.start(0.0)
        assert len(running) == tasks.num_running <= num_workers
        assert len(set(running)) == len(running)
        assert sum(other.function == "code" for other in running) <= 1
    for _ in range(200):
        if not running:
            break
        done.add(running[0])
        tasks.finished(running.pop(0))
        running += tasks.start(0.0)
    assert needed <= done
    assert tasks.depth == 0
