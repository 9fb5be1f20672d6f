"""The order in which responses are scored."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.policy.draws import Draw
from longshore.policy.reward_queue import MAX_EARLY_PER_WORKER, RewardQueue, ScoreTask
from longshore.policy.round import ResponseId


def task(draw: int, index: int = 0, function: str = "maths") -> ScoreTask:
    return ScoreTask(1, ResponseId(Draw(0, draw), index), function)


MOST = {"maths": 1, "code": 1, "judge": 4, "taste": 8}
"""Responses of one call, by function."""


def queue(num_workers: int = 1, **budgets: int) -> RewardQueue:
    return RewardQueue(num_workers, budgets, {"maths": 2, "code": 0})


def judges(num_workers: int = 1, **budgets: int) -> RewardQueue:
    return RewardQueue(num_workers, budgets, {"judge": 2}, {"judge": 8})


def singles(tasks: RewardQueue) -> tuple[ScoreTask, ...]:
    """What starts, one response per call."""
    calls = tasks.start()
    assert all(len(call) == 1 for call in calls)
    return tuple(one for (one,) in calls)


def numbers(calls: tuple[tuple[ScoreTask, ...], ...]) -> list[list[int]]:
    """The draws of each call."""
    return [[one.response.draw.index for one in call] for call in calls]


def test_responses_are_scored_early_in_the_order_in_which_they_finished() -> None:
    early = queue()
    early.submit([task(3), task(1)], 0.0)
    assert singles(early) == (task(3),)
    early.finished(task(3))
    assert singles(early) == (task(1),)


def test_what_a_served_group_waits_for_goes_first() -> None:
    mixed = queue()
    mixed.submit([task(1), task(2), task(3)], 0.0)
    mixed.need([task(3), task(4)], 1.0)
    order = []
    for _ in range(4):
        (started,) = singles(mixed)
        order.append(started.response.draw.index)
        mixed.finished(started)
    assert order == [3, 4, 1, 2]


def test_a_function_never_holds_more_workers_than_its_budget() -> None:
    slow = queue(3, code=1)
    slow.need([task(1, function="code"), task(2, function="code"), task(3)], 0.0)
    assert singles(slow) == (task(1, function="code"), task(3))
    slow.finished(task(1, function="code"))
    assert singles(slow) == (task(2, function="code"),)


def test_early_work_is_bounded_and_dropped_work_is_scored_when_its_group_is_served() -> None:
    full = queue()
    tasks = [task(number) for number in range(MAX_EARLY_PER_WORKER + 3)]
    full.submit(tasks, 0.0)
    assert full.depth == MAX_EARLY_PER_WORKER
    full.need(tasks[-1:], 1.0)
    assert singles(full) == (tasks[-1],)


def test_scores_that_nobody_wants_any_longer_are_not_computed() -> None:
    dropped = queue()
    dropped.submit([task(1), task(2)], 0.0)
    dropped.drop([Draw(0, 1)])
    assert singles(dropped) == (task(2),)


def test_a_fault_is_retried_up_to_the_limit_and_then_given_up() -> None:
    faulty = queue()
    faulty.need([task(1)], 0.0)
    outcomes = []
    while singles(faulty):
        fault = faulty.faulted(task(1))
        outcomes.append((fault.retries, fault.wait_s))
        if fault.retries:
            faulty.submit([task(1)], 1.0)
    assert outcomes == [(True, 0.5), (True, 1.0), (False, 2.0)]


def test_a_needed_task_that_met_a_fault_stays_needed() -> None:
    faulty = queue()
    faulty.need([task(1)], 0.0)
    faulty.submit([task(2)], 0.0)
    assert singles(faulty) == (task(1),)
    assert faulty.faulted(task(1)).retries
    faulty.submit([task(1)], 0.5)
    assert singles(faulty) == (task(1),)


def test_what_waits_at_the_end_of_a_round_is_not_scored_in_the_next() -> None:
    over = queue(2)
    over.submit([task(1), task(2), task(3)], 0.0)
    over.need([task(4)], 0.0)
    running = singles(over)
    over.clear()
    assert over.depth == 0
    assert singles(over) == ()
    for one in running:
        over.finished(one)
    assert singles(over) == ()
    over.submit([task(3)], 3.0)
    assert singles(over) == (task(3),)


@pytest.mark.parametrize(
    ("num_workers", "waiting", "calls"),
    [
        (1, 1, [[0]]),
        (1, 5, [[0, 1, 2, 3, 4]]),
        (1, 11, [[0, 1, 2, 3, 4, 5, 6, 7]]),
        (2, 5, [[0, 1, 2], [3, 4]]),
        (3, 2, [[0], [1]]),
        (2, 40, [[0, 1, 2, 3, 4, 5, 6, 7], [8, 9, 10, 11, 12, 13, 14, 15]]),
    ],
)
def test_free_workers_share_what_waits_for_a_judge_up_to_the_bound_of_a_call(
    num_workers: int, waiting: int, calls: list[list[int]]
) -> None:
    judged = judges(num_workers)
    judged.need([task(number, function="judge") for number in range(waiting)], 0.0)
    assert numbers(judged.start()) == calls
    assert judged.depth == waiting - sum(map(len, calls))
    assert judged.num_calls == len(calls)


def test_a_call_takes_what_is_needed_before_what_is_early_and_both_in_order() -> None:
    judged = judges()
    judged.submit([task(number, function="judge") for number in (1, 2, 3)], 0.0)
    judged.need([task(number, function="judge") for number in (3, 4)], 1.0)
    assert numbers(judged.start()) == [[3, 4, 1, 2]]


def test_a_call_has_one_function_that_of_the_task_that_waits_first() -> None:
    judged = judges()
    judged.need([task(1), task(2, function="judge"), task(3), task(4, function="judge")], 0.0)
    assert judged.start() == ((task(1),),)
    judged.finished(task(1))
    assert judged.start() == ((task(2, function="judge"), task(4, function="judge")),)


def test_a_worker_is_free_when_the_last_response_of_its_call_is_answered() -> None:
    judged = judges()
    first, second, third = (task(number, function="judge") for number in range(3))
    judged.need([first, second], 0.0)
    assert judged.start() == ((first, second),)
    judged.need([third], 1.0)
    judged.finished(first)
    assert judged.start() == ()
    judged.finished(second)
    assert judged.start() == ((third,),)


def test_a_budget_counts_the_responses_of_a_call() -> None:
    judged = judges(2, judge=3)
    judged.need([task(number, function="judge") for number in range(8)], 0.0)
    assert numbers(judged.start()) == [[0, 1, 2]]
    judged.finished(task(1, function="judge"))
    assert numbers(judged.start()) == [[3]]


def test_a_response_that_met_a_fault_is_scored_alone_so_that_no_other_suffers() -> None:
    judged = judges()
    tasks = [task(number, function="judge") for number in range(3)]
    judged.need(tasks, 0.0)
    assert judged.start() == (tuple(tasks),)
    for one in tasks[:2]:
        judged.faulted(one)
    judged.finished(tasks[2])
    judged.submit([*tasks[:2], task(3, function="judge"), task(4, function="judge")], 1.0)
    order = []
    while calls := judged.start():
        order += numbers(calls)
        for one in calls[0]:
            judged.finished(one)
    assert order == [[0], [1], [3, 4]]


@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.sampled_from("sndef"), st.integers(0, 9), st.integers(0, 3)), max_size=60),
)
def test_no_task_is_lost_doubled_or_run_beyond_workers_budgets_and_bounds(
    num_workers: int, steps: list[tuple[str, int, int]]
) -> None:
    budgets = {"code": 1, "taste": 3}
    tasks = RewardQueue(num_workers, budgets, {"maths": 2, "judge": 1}, MOST)
    needed: set[ScoreTask] = set()
    done: set[ScoreTask] = set()
    calls: list[list[ScoreTask]] = []

    def end() -> ScoreTask:
        ended = calls[0].pop(0)
        if not calls[0]:
            calls.pop(0)
        return ended

    def start() -> None:
        waited, num_before = tasks.depth, sum(map(len, calls))
        calls.extend(map(list, tasks.start()))
        running = [one for call in calls for one in call]
        assert len(calls) == tasks.num_calls <= num_workers
        assert len(set(running)) == len(running) == num_before + waited - tasks.depth
        assert all(len({one.function for one in call}) == 1 for call in calls)
        assert all(len(call) <= MOST[call[0].function] for call in calls)
        assert all(
            sum(one.function == name for one in running) <= most for name, most in {"code": 1, "taste": 3}.items()
        )

    for action, draw, index in steps:
        one = task(draw, index, ["maths", "judge", "code", "taste"][index])
        match action:
            case "s" if one not in done:
                tasks.submit([one], 0.0)
            case "n" if one not in done:
                tasks.need([one], 0.0)
                needed.add(one)
            case "d":
                tasks.drop([Draw(0, draw)])
                needed = {other for other in needed if other.response.draw != Draw(0, draw)}
            case "e" if calls:
                ended = end()
                done.add(ended)
                tasks.finished(ended)
            case "f" if calls:
                ended = end()
                if tasks.faulted(ended).retries:
                    tasks.submit([ended], 0.0)
                else:
                    done.add(ended)
        start()
    while calls:
        ended = end()
        done.add(ended)
        tasks.finished(ended)
        start()
    assert needed <= done
    assert tasks.depth == 0
