"""From measurements to a profile: medians, with how many they are of."""

from hypothesis import given
from hypothesis import strategies as st

from longshore.sim.profile import Profile
from longshore_runtime.profiling.figures import Figures
from longshore_runtime.profiling.staircase import Window


def test_figures_are_medians_and_say_of_how_many() -> None:
    figures = Figures()
    for seconds in (3.0, 1.0, 90.0):
        figures.scalar("publish_s", seconds)
        figures.decode(2, 16, Window(8, 200, seconds))
        figures.prefill(2, 256, 100 * seconds)
        figures.judge("taste", 64, seconds, round(seconds))
    figures.decode(2, 512, Window(8, 5_000, 7.0))
    figures.kv_capacity(2, 1_000)
    figures.kv_capacity(2, 990)
    profile = figures.profile()
    assert [(one.context_tokens, one.step_s, one.measurements) for one in profile.decode] == [
        (200, 3.0, 3),
        (5_000, 7.0, 1),
    ]
    assert (profile.prefill[0].tokens_per_s, profile.prefill[0].measurements) == (300.0, 3)
    assert (profile.judge[0].seconds, profile.judge[0].peak_bytes) == (3.0, 90)
    assert profile.kv_capacity_tokens == {2: 990}
    assert profile.publish_s == 3.0
    assert profile.measurements == {"publishSeconds": 3, "kvCapacityTokens.2": 2}


def test_what_was_not_measured_is_left_out() -> None:
    profile = Figures().profile()
    assert profile == Profile()
    assert profile.model_dump(exclude_none=True, exclude_defaults=True) == {}


def test_a_step_that_took_no_time_is_no_measurement() -> None:
    figures = Figures()
    figures.decode(1, 16, Window(8, 200, 0.0))
    assert figures.profile().decode == []


@given(st.lists(st.floats(1e-6, 1e6), min_size=1))
def test_a_profile_survives_its_file(seconds: list[float]) -> None:
    figures = Figures()
    for one in seconds:
        figures.scalar("optimizer_s", one)
        figures.decode(1, 16, Window(4, 100, one))
    profile = figures.profile()
    assert Profile.model_validate_json(profile.model_dump_json(by_alias=True, exclude_none=True)) == profile
