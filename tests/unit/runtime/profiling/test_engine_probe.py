"""What is measured of engines, and what becomes of a batch that does not end."""

import pytest

from longshore_runtime.errors import EngineDied
from longshore_runtime.profiling.engine_probe import BATCH_LIMIT_S
from longshore_runtime.profiling.figures import Figures
from longshore_runtime.rewards.events import CheckDue
from tests.unit.runtime.profiling.timed_engines import LIMITS, TimedEngines, probe


def sizes(figures: Figures) -> set[int]:
    return {point.num_running for point in figures.profile().decode}


def test_steps_of_every_batch_size_are_measured_on_every_engine() -> None:
    engines, figures = TimedEngines(step_s=0.125), Figures()
    probe(engines).decode(1, LIMITS, figures)
    found = figures.profile().decode
    assert [point.num_running for point in found] == [1, 1, 2, 2, 4, 4, 7, 7], "with short prompts and with long ones"
    assert {point.step_s for point in found} == {0.125}
    assert {point.measurements for point in found} == {2}


def test_a_batch_that_takes_too_long_is_cut_off_and_what_it_has_shown_counts() -> None:
    """The limit leaves 60 of the 24 steps of each level together: the mark and the largest batch."""
    engines, figures = TimedEngines(step_s=BATCH_LIMIT_S / 60), Figures()
    probe(engines).decode(1, LIMITS, figures)
    assert sizes(figures) == {7}
    assert engines.num_unfinished == 0


def test_a_migration_is_what_a_stop_and_a_token_elsewhere_take() -> None:
    engines, figures = TimedEngines(num_engines=3, step_s=0.125), Figures()
    probe(engines).migration(LIMITS, figures)
    profile = figures.profile()
    assert profile.migration_s == 0.125, "a stop takes no time here, and all go on together"
    assert profile.measurements["migrationSeconds"] == 1
    assert engines.num_unfinished == 0


def test_one_engine_has_nobody_to_migrate_to() -> None:
    engines, figures = TimedEngines(num_engines=1), Figures()
    probe(engines).migration(LIMITS, figures)
    assert figures.profile().migration_s is None
    assert engines.num_added == 0


def test_responses_that_do_not_begin_are_no_migration() -> None:
    engines, figures = TimedEngines(stuck={1}), Figures()
    probe(engines).migration(LIMITS, figures)
    assert figures.profile().migration_s is None
    assert engines.clock.reading_s == BATCH_LIMIT_S
    assert engines.num_unfinished == 0


def test_responses_that_do_not_go_on_are_cut_off_and_the_next_batch_counts_its_own() -> None:
    engines, figures = TimedEngines(stuck_once_stopped={0}), Figures()
    of_them = probe(engines)
    of_them.migration(LIMITS, figures)
    assert figures.profile().migration_s is None
    assert engines.num_unfinished == 0
    engines.stuck = engines.stuck_once_stopped = set()
    of_them.decode(1, LIMITS, figures)
    assert {point.measurements for point in figures.profile().decode} == {2}


def test_waiting_for_an_engine_ends_though_events_for_others_come() -> None:
    engines = TimedEngines(num_engines=0)
    engines.put(CheckDue())
    with pytest.raises(EngineDied, match="no engine was there again within 900 s"):
        probe(engines).decode(1, LIMITS, Figures())
    assert engines.get(timeout=0.0) == CheckDue(), "whom it is for finds it"
