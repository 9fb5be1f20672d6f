"""Who serves, who is out of the round, and who is owed: as the pool remembers it."""

from longshore_runtime.rollout.roster import Roster


def serving(*engines: int) -> Roster:
    roster = Roster()
    roster.receive(engines)
    roster.serving, roster.receiving = set(engines), set()
    return roster


def test_new_weights_go_to_the_engines_of_the_round_and_nobody_serves_before_it_has_them() -> None:
    roster = serving(0, 1, 2)
    roster.retire([1])
    assert roster.receive([0, 1, 2]) == [0, 2]
    assert (roster.serving, roster.receiving) == (set(), {0, 2})


def test_an_engine_waits_for_weights_unless_it_has_them_or_gets_them_or_is_out_of_the_round() -> None:
    roster = serving(0)
    roster.retire([1])
    assert [roster.waits(engine) for engine in (0, 1, 2)] == [False, False, True]
    roster.receive([2])
    assert not roster.waits(2)
    roster.receiving = set()
    roster.is_quiet = True
    assert not roster.waits(2)


def test_a_round_hears_of_the_losses_of_its_engines_and_the_next_one_starts_the_others_anew() -> None:
    roster = serving(0, 1)
    roster.retire([1])
    assert [roster.lose(engine) for engine in (0, 1)] == [True, False]
    assert roster.serving == set()
    assert roster.wake() == [1]
    assert roster.wake() == [], "once"
    assert not roster.is_retired(1)


def test_whatever_is_lost_while_nobody_serves_is_owed() -> None:
    roster = serving(0, 1)
    roster.is_quiet = True
    assert not roster.lose(0)
    roster.owe([1])
    assert roster.settle() == [0, 1]


def test_another_fleet_begins_with_nothing() -> None:
    roster = serving(0, 1)
    roster.retire([1])
    roster.lose(1)
    roster.change_fleet()
    assert (roster.serving, roster.settle(), roster.is_retired(1), roster.is_quiet) == (set(), [], False, True)
