"""Where requests go."""

from longshore.api.round_status import RoundKind
from longshore.policy.draws import Draw
from longshore.policy.round import ResponseId
from longshore.policy.routing import Router


def responses(num_draws: int, num_responses: int) -> list[ResponseId]:
    return [ResponseId(Draw(0, draw), index) for draw in range(num_draws) for index in range(num_responses)]


def test_short_rounds_keep_a_group_on_one_engine() -> None:
    placement = Router([0, 1]).place(responses(4, 3), RoundKind.SHORT)
    assert {engine: len(placed) for engine, placed in placement.items()} == {0: 6, 1: 6}
    for placed in placement.values():
        assert all(len([r for r in placed if r.draw == draw]) == 3 for draw in {r.draw for r in placed})


def test_long_rounds_spread_a_group_over_the_engines() -> None:
    placement = Router([0, 1, 2]).place(responses(1, 3), RoundKind.LONG)
    assert sorted(placement) == [0, 1, 2]


def test_the_least_loaded_engine_is_next() -> None:
    router = Router([0, 1])
    first = responses(2, 2)
    router.place(first, RoundKind.SHORT)
    router.ended(first[2])
    assert list(router.place([ResponseId(Draw(1, 0), 0)], RoundKind.SHORT)) == [1]


def test_a_response_that_has_ended_is_no_load() -> None:
    router = Router([0, 1])
    for draw in range(3):
        response = ResponseId(Draw(0, draw), 0)
        assert list(router.place([response], RoundKind.LONG)) == [0]
        router.ended(response)


def test_no_engine_is_given_more_than_its_limit_while_another_has_room() -> None:
    router = Router([0, 1], {0: 2, 1: 4}.get)
    placement = router.place(responses(2, 3), RoundKind.SHORT)
    assert {engine: len(placed) for engine, placed in placement.items()} == {0: 2, 1: 4}


def test_of_engines_with_room_the_least_loaded_is_next() -> None:
    router = Router([0, 1, 2], {0: 1}.get)
    router.place(responses(1, 3), RoundKind.LONG)
    more = [ResponseId(Draw(1, 0), index) for index in range(3)]
    assert router.place(more, RoundKind.LONG) == {1: [more[0], more[2]], 2: [more[1]]}


def test_responses_of_a_lost_engine_are_placed_on_those_that_are_left() -> None:
    router = Router([0, 1])
    router.place(responses(2, 2), RoundKind.SHORT)
    orphans = router.lost(0)
    assert orphans == tuple(responses(1, 2))
    assert (router.engines, [router.engine_of(orphan) for orphan in orphans]) == ((1,), [None, None])
    assert router.place(orphans, RoundKind.SHORT) == {1: list(orphans)}


def test_an_engine_that_is_retired_keeps_what_it_runs_and_gets_nothing_more() -> None:
    router = Router([0, 1])
    begun = responses(2, 2)
    router.place(begun, RoundKind.SHORT)
    assert router.retire(0) == tuple(begun[:2])
    assert (router.engines, router.engine_of(begun[0])) == ((1,), 0)
    late = ResponseId(begun[0].draw, 2)
    assert router.place([late], RoundKind.SHORT) == {1: [late]}, "although its group began on the other one"
    router.ended(begun[0])
    assert router.engine_of(begun[0]) is None


def test_groups_of_other_engines_stay_where_they_are() -> None:
    for leave in (Router.lost, Router.retire):
        router = Router([0, 1, 2])
        router.place(responses(3, 2), RoundKind.SHORT)
        leave(router, 0)
        router.place([ResponseId(Draw(9, 0), index) for index in range(3)], RoundKind.SHORT)
        late = [ResponseId(Draw(0, draw), 2) for draw in (1, 2)]
        assert router.place(late, RoundKind.SHORT) == {1: [late[0]], 2: [late[1]]}


def test_an_engine_that_comes_back_is_empty() -> None:
    router = Router([0, 1])
    router.place(responses(2, 2), RoundKind.SHORT)
    router.lost(0)
    router.joined(0)
    later = [ResponseId(Draw(5, index), 0) for index in range(3)]
    assert router.place(later, RoundKind.LONG) == {0: later}


def test_without_an_engine_nothing_can_be_placed() -> None:
    router = Router([0])
    assert router.has_engines
    router.lost(0)
    assert not router.has_engines
    router.joined(3)
    assert router.has_engines
    assert list(router.place(responses(1, 1), RoundKind.SHORT)) == [3]
