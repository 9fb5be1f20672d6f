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


def test_no_engine_is_given_more_than_its_limit_while_another_has_room() -> None:
    router = Router([0, 1], {0: 2, 1: 4}.get)
    placement = router.place(responses(2, 3), RoundKind.SHORT)
    assert {engine: len(placed) for engine, placed in placement.items()} == {0: 2, 1: 4}
