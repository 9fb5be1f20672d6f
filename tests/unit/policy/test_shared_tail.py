"""When the rest of a round moves to the GPUs that a job does not share."""

from longshore.api.round_status import RoundKind
from longshore.policy.progress import RoundProgress
from longshore.policy.scale_down import MilestoneLoad, RolloutEngine
from longshore.policy.shared_tail import TailMilestones, tail_fits


def progress(num_finished: int, num_held: int = 0) -> RoundProgress:
    return RoundProgress(RoundKind.FULL, 200 - num_held, num_finished, num_held)


def load(peak_tokens: int) -> MilestoneLoad:
    """On four engines of 1,000 tokens."""
    return MilestoneLoad((), tuple(RolloutEngine(number, 0, 1, 1_000) for number in range(4)), peak_tokens)


def test_the_rest_fits_if_its_peak_fits_nine_tenths_of_the_own_caches() -> None:
    assert tail_fits(load(900), {0}) and not tail_fits(load(901), {0})
    assert tail_fits(load(1_800), {0, 1}) and not tail_fits(load(1_801), {0, 1})


def test_a_look_is_due_after_each_hundredth_of_the_requests() -> None:
    milestones = TailMilestones()
    assert [milestones.is_due(progress(count)) for count in (1, 2, 3, 4, 195)] == [False, True, False, True, True]


def test_no_look_is_due_while_gates_hold_requests_back() -> None:
    milestones = TailMilestones()
    assert not milestones.is_due(progress(50, num_held=1))
    assert milestones.is_due(progress(51))


def test_the_rest_moves_once_in_a_round() -> None:
    milestones = TailMilestones()
    milestones.close()
    assert not milestones.is_due(progress(100))
