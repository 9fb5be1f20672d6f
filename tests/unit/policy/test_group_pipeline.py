"""The group pipeline step by step (RolloutPipe, section 3)."""

import json
from collections import deque

from longshore.policy.group_pipeline import GroupPipeline, mean_held_tokens
from longshore.policy.handover import Batch, HandoverQueue, TrainableGroup
from longshore.policy.round import ResponseFinished
from longshore.policy.round_plan import Acceptance
from longshore.policy.round_policy import AdmissionRules, BatchShape
from tests.unit.policy.tables import DRAWS, Did, Ended, Table, cursor


def policy(frontier_width: int | None = 2, num_prompts: int = 6, **rules: object) -> GroupPipeline:
    shape = BatchShape(num_prompts, num_responses=2)
    return GroupPipeline(shape, cursor(), AdmissionRules(frontier_width=frontier_width, **rules))  # type: ignore[arg-type]


def test_the_example_of_the_paper_two_of_six_groups_are_in_service() -> None:
    """Section 3.3: with F_w = 2 the frontier is {1, 2}; group 1 has its responses, and it becomes {2, 3}."""
    table = Table(policy())
    assert table.row("start") == Did(launch="A0 A1 B0 B1")
    assert table.row("A0") == Did(), "a response frees nothing: the slot belongs to the group"
    assert table.row("A1") == Did(launch="C0 C1", accepted="A01", score="A01")
    assert table.row("C0 C1") == Did(launch="D0 D1", accepted="C01", score="C01"), "the next in order, not in time"
    assert table.row("B0 B1 D0 D1") == Did(launch="E0 E1 F0 F1", accepted="B01 D01", score="B01 D01")
    assert table.row("F0 F1") == Did(accepted="F01", score="F01")
    assert table.row("E0 E1") == Did(accepted="E01", score="E01", has_batch=True)
    assert table.end() == Ended(accepted="A01 C01 B01 D01 F01 E01")


def test_served_frees_the_slot_and_trainable_enters_the_queue_of_the_trainer() -> None:
    """Two signals (section 3.3): engines go on while a verifier still looks at a group, and U counts its verdicts."""
    table, handover = Table(policy()), HandoverQueue(update_sizes=(2,), max_tokens_per_batch=100)
    table.row("start")
    assert table.row("A0 A1").launch == "C0 C1"
    assert table.row("B0 B1").launch == "D0 D1"
    assert handover.add(TrainableGroup(DRAWS["B"], 10)) == ()
    assert table.row("C0 C1").launch == "E0 E1"
    first = handover.add(TrainableGroup(DRAWS["C"], 10))
    assert first == (Batch((DRAWS["B"], DRAWS["C"]), ends_update=True),), "A's rewards are late: it goes later"
    assert handover.add(TrainableGroup(DRAWS["A"], 10)) == ()


def pipeline(groups_per_update: int = 1, width: int | None = None) -> GroupPipeline:
    rules = AdmissionRules(frontier_width=width)
    return GroupPipeline(BatchShape(num_prompts=6, num_responses=2), cursor(), rules, groups_per_update)


def played(rounds: GroupPipeline, kv_capacity_tokens: int, engines: tuple[int, ...] = (0,)) -> int:
    """A round whose responses all have ten tokens; returns how many groups it starts with."""
    start = rounds.start_round(engines=engines, kv_capacity_tokens=kv_capacity_tokens)
    running = deque(start.decision.launch)
    while running:
        response = running.popleft()
        running += rounds.responses_finished([ResponseFinished(response, 0, num_tokens=10)]).launch
    rounds.end_round()
    return len({response.draw for response in start.decision.launch})


def test_a_group_holds_the_average_of_its_responses_until_the_last_of_them_ends() -> None:
    assert mean_held_tokens([10, 10]) == 10
    assert mean_held_tokens([10, 5]) == (10 * 10 / 2 + 5 * 5 / 2) / 10
    assert mean_held_tokens([0, 0]) == 0


def test_the_frontier_is_as_wide_as_the_kv_caches_hold_once_lengths_are_known() -> None:
    rounds = pipeline()
    assert played(rounds, 25) == 6, "nothing is known: all groups"
    assert rounds.num_groups_in_cache is None
    assert played(rounds, 25) == 4, "ten tokens each on average: three fill the cache, and one more takes over"
    assert rounds.num_groups_in_cache == 4
    assert played(rounds, 20) == 3
    assert played(rounds, 10, engines=(0, 1)) == 4, "on each engine"
    assert played(rounds, 5) == 2
    assert played(rounds, 1_000) == 6
    assert played(rounds, 0) == 6, "engines that tell nothing about their cache"


def test_the_frontier_feeds_an_update_however_small_the_caches_are() -> None:
    rounds = pipeline(groups_per_update=3)
    played(rounds, 5)
    assert played(rounds, 5) == 3


def test_a_frontier_that_the_job_asks_for_is_one_per_engine() -> None:
    rounds = pipeline(groups_per_update=3, width=2)
    assert played(rounds, 5) == 2
    assert played(rounds, 5, engines=(4, 7)) == 4


def test_what_is_known_of_lengths_survives_a_restart() -> None:
    rounds, restored = pipeline(), pipeline()
    played(rounds, 25)
    restored.load_state(json.loads(json.dumps(rounds.export_state())))
    assert played(restored, 20) == played(rounds, 20) == 3


def test_a_group_whose_rewards_failed_is_replaced_at_the_end_of_the_order() -> None:
    table = Table(policy(num_prompts=3))
    table.rows("start", "A0 A1")
    assert table.row("A!") == Did(), "the frontier is full: D waits behind B and C"
    assert table.row("B0 B1") == Did(launch="D0 D1", accepted="B01", score="B01")


def test_dynamic_sampling_issues_groups_behind_the_frontier() -> None:
    table = Table(policy(frontier_width=1, num_prompts=1, acceptance=Acceptance.TRAINABLE))
    assert table.row("start") == Did(launch="A0 A1")
    assert table.row("A0 A1") == Did(score="A01")
    assert table.row("A=") == Did(launch="B0 B1")
    table.row("B0 B1")
    assert table.row("B~") == Did(accepted="B01", has_batch=True)
    assert table.end() == Ended(accepted="B01", zero_variance="A")
