"""What a meter shows of a trainer's calls."""

import pytest

from longshore_runtime.backends.work_meter import WorkMeter


def seen(meter: WorkMeter, num_micro_batches: int, num_samples: int) -> list[float]:
    """While each micro-batch of a pass is computed."""
    return [meter.num_computed for _ in meter.each(range(num_micro_batches), num_samples)]


def test_samples_count_by_micro_batches_over_all_passes_of_a_call() -> None:
    meter = WorkMeter()
    with meter.call(10):
        meter.expect(2 * 8)  # Two have no pass.
        assert seen(meter, 2, 8) == [0.0, 2.5]
        assert seen(meter, 4, 8) == [5.0, 6.25, 7.5, 8.75]
    assert meter.num_computed == 10


def test_a_call_counts_whole_once_it_has_ended_however_it_has_ended() -> None:
    meter = WorkMeter()
    with pytest.raises(ZeroDivisionError), meter.call(4):
        meter.expect(4)
        for number in meter.each((1, 0), 4):
            assert 1 / number
    assert meter.num_computed == 4
    with meter.call(3):
        meter.expect(3)
        assert seen(meter, 3, 3) == [4.0, 5.0, 6.0]
    assert meter.num_computed == 7


def test_a_checkpoint_is_loaded_whole_when_its_loading_has_ended_without_an_error() -> None:
    meter = WorkMeter()
    with meter.loading():
        meter.loaded(1, 4)
        assert meter.loaded_share == 0.25
    assert meter.loaded_share == 1
    with pytest.raises(OSError, match="cut off"), meter.loading():
        assert meter.loaded_share == 0, "another one"
        meter.loaded(1, 2)
        raise OSError("cut off")
    assert meter.loaded_share == 0.5


def test_a_call_without_a_pass_and_passes_without_a_call_are_no_progress_in_between() -> None:
    meter = WorkMeter()
    with meter.call(4):
        meter.expect(0)
        assert meter.num_computed == 0
    assert seen(meter, 2, 4) == [4.0, 4.0], "a comparison of gradients"
    with meter.call(2):
        assert seen(meter, 2, 2) == [4.0, 4.0], "nothing is expected yet"
