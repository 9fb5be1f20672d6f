"""The group pipeline step by step (RolloutPipe, section 3)."""

from longshore.api.rollout import Admission, Rollout, Strategy
from longshore.policy.group_pipeline import GroupPipeline
from longshore.policy.handover import Batch, Handover, TrainableGroup
from longshore.policy.presets import round_policy
from longshore.policy.round import Acceptance
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
    assert table.row("E0 E1") == Did(accepted="E01", score="E01", ended=True)
    assert table.end() == Ended(accepted="A01 C01 B01 D01 F01 E01")


def test_served_frees_the_slot_and_trainable_enters_the_queue_of_the_trainer() -> None:
    """Two signals (section 3.3): engines go on while a verifier still looks at a group, and U counts its verdicts."""
    table, handover = Table(policy()), Handover(groups_per_update=2, max_tokens_per_batch=100)
    table.row("start")
    assert table.row("A0 A1").launch == "C0 C1"
    assert table.row("B0 B1").launch == "D0 D1"
    assert handover.trainable(TrainableGroup(DRAWS["B"], 10)) == ()
    assert table.row("C0 C1").launch == "E0 E1"
    first = handover.trainable(TrainableGroup(DRAWS["C"], 10))
    assert first == (Batch((DRAWS["B"], DRAWS["C"]), ends_update=True),), "A's rewards are late: it goes later"
    assert handover.trainable(TrainableGroup(DRAWS["A"], 10)) == ()


def test_the_frontier_is_as_wide_as_an_update_unless_asked_otherwise() -> None:
    def launched(groups_per_update: int | None, frontier_width: int | None) -> str:
        rollout = Rollout(strategy=Strategy.GROUP_PIPELINE, admission=Admission(frontier_width=frontier_width))
        shape = BatchShape(num_prompts=4, num_responses=2)
        return Table(round_policy(rollout, shape, cursor(), groups_per_update=groups_per_update)).row("start").launch

    assert launched(groups_per_update=1, frontier_width=None) == "A0 A1"
    assert launched(groups_per_update=2, frontier_width=None) == "A0 A1 B0 B1"
    assert launched(groups_per_update=2, frontier_width=3) == "A0 A1 B0 B1 C0 C1"
    assert launched(groups_per_update=None, frontier_width=None) == "A0 A1 B0 B1 C0 C1 D0 D1"


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
    assert table.row("B~") == Did(accepted="B01", ended=True)
    assert table.end() == Ended(accepted="B01", zero_variance="A")
