"""Who uses the GPUs that the members of a sharing group share, and who may join."""

from dataclasses import replace

import pytest

from longshore.policy.sharing_group import (
    Claim,
    Grant,
    Member,
    MemberTurns,
    SharingGroup,
    arbitrate,
    overdue,
    refusal,
)

EMPTY = SharingGroup(slot_host_bytes=100)


def member(
    name: str, slots: str = "s", *, step_s: float = 10.0, turn_s: float = 4.0, limit: float = 9.0, host_bytes: int = 10
) -> Member:
    """One whose steps take 10 s alone; slots are single letters."""
    return Member(name, frozenset(slots), host_bytes, 10.0, step_s, turn_s, limit)


def group(*members: Member) -> SharingGroup:
    joined = EMPTY
    for each in members:
        joined = joined.joined(each)
    return joined


def holders(found: SharingGroup, claims: dict[str, Claim]) -> set[str]:
    return {each.member.name for each in found.standings if each.holds(claims.get(each.member.name, Claim()))}


def recalled(found: SharingGroup, claims: dict[str, Claim]) -> set[str]:
    return {each.member.name for each in found.standings if each.is_recalled(claims.get(each.member.name, Claim()))}


ASKS, HOLDS_FIRST, RETURNED_FIRST, ASKS_AGAIN = Claim(1, 0), Claim(1, 0), Claim(1, 1), Claim(2, 1)


def test_a_free_slot_goes_to_the_member_that_asks() -> None:
    claims = {"a": ASKS}
    assert holders(arbitrate(group(member("a"), member("b")), claims, (), 0.0), claims) == {"a"}


def test_a_turn_stays_as_long_as_nobody_else_asks() -> None:
    claims = {"a": ASKS}
    first = arbitrate(group(member("a"), member("b")), claims, (), 0.0)
    later = arbitrate(first, claims, (), 1e6)
    assert later == first and not recalled(later, claims)


def test_a_turn_is_recalled_when_another_member_asks_for_its_slots() -> None:
    first = arbitrate(group(member("a"), member("b")), {"a": ASKS}, (), 0.0)
    claims = {"a": HOLDS_FIRST, "b": ASKS}
    second = arbitrate(first, claims, (), 5.0)
    assert (holders(second, claims), recalled(second, claims)) == ({"a"}, {"a"})
    claims["a"] = RETURNED_FIRST
    assert holders(arbitrate(second, claims, (), 6.0), claims) == {"b"}


def test_members_without_a_common_slot_do_not_wait_for_each_other() -> None:
    claims = {"a": ASKS, "b": ASKS}
    found = arbitrate(group(member("a", "s"), member("b", "t")), claims, (), 0.0)
    assert holders(found, claims) == {"a", "b"} and not recalled(found, claims)


def test_turns_go_round() -> None:
    claims = dict.fromkeys("abc", ASKS)
    found, order = group(*map(member, "abc")), []
    for _ in range(9):
        found = arbitrate(found, claims, (), 0.0)
        (holder,) = holders(found, claims)
        order.append(holder)
        turns = claims[holder].asked
        claims[holder] = Claim(turns + 1, turns)
    assert "".join(order) == "abcabcabc"


def test_small_members_do_not_overtake_a_large_one_that_waits() -> None:
    """`wide` needs both slots, which the small ones would never leave free at the same time."""
    found = arbitrate(group(member("left", "s"), member("right", "t"), member("wide", "st")), {"left": ASKS}, (), 0.0)
    claims = {"left": HOLDS_FIRST, "right": ASKS, "wide": ASKS}
    found = arbitrate(found, claims, (), 1.0)
    claims["right"] = ASKS_AGAIN  # It has returned, asks again, and its slot is free.
    found = arbitrate(found, claims, (), 2.0)
    assert holders(found, claims) == {"left"}
    claims["left"] = ASKS_AGAIN
    assert holders(arbitrate(found, claims, (), 3.0), claims) == {"wide"}


def test_a_member_that_joins_waits_behind_those_that_wait() -> None:
    claims = {"a": ASKS, "b": ASKS}
    found = arbitrate(group(member("a"), member("b")), claims, (), 0.0).joined(member("new"))
    claims |= {"a": ASKS_AGAIN, "new": ASKS}
    assert holders(arbitrate(found, claims, (), 1.0), claims) == {"b"}


def test_what_a_member_held_is_free_once_its_pods_are_gone() -> None:
    found = arbitrate(group(member("a"), member("b")), {"a": ASKS}, (), 0.0)
    claims = {"a": HOLDS_FIRST, "b": ASKS}
    assert holders(arbitrate(found, claims, (), 1.0), claims) == {"a"}
    assert holders(arbitrate(found, claims, {"a"}, 1.0), claims) == {"b"}


def test_a_member_of_which_nothing_is_known_keeps_its_turn() -> None:
    """An arbiter that has just started has read no claim yet."""
    found = arbitrate(group(member("a"), member("b")), {"a": ASKS}, (), 0.0)
    assert holders(arbitrate(found, {"b": ASKS}, (), 1.0), {}) == {"a"}


def test_a_recalled_turn_is_overdue_after_three_times_what_it_may_take() -> None:
    found = arbitrate(group(member("a", turn_s=4.0), member("b")), {"a": ASKS}, (), 0.0)
    claims = {"a": HOLDS_FIRST, "b": ASKS}
    found = arbitrate(found, claims, (), 100.0)
    found = arbitrate(found, claims, (), 111.0)  # A recall that is repeated does not begin again.
    assert overdue(found, claims, 111.9) == ()
    assert overdue(found, claims, 112.1) == ("a",)
    assert overdue(found, claims | {"a": RETURNED_FIRST}, 112.1) == ()


def test_a_turn_that_nobody_waits_for_is_never_overdue() -> None:
    found = arbitrate(group(member("a"), member("b")), {"a": ASKS}, (), 0.0)
    assert overdue(found, {"a": HOLDS_FIRST}, 1e9) == ()


def test_a_member_uses_the_gpus_from_the_grant_until_it_returns_the_turn() -> None:
    turns = MemberTurns().asking()
    assert not turns.may_use and not turns.is_asleep
    turns = turns.read(Grant(1, 0))
    assert turns.may_use and not turns.is_recalled
    turns = turns.read(Grant(1, 1)).read(Grant(1, 0))  # The second message is older.
    assert turns.may_use and turns.is_recalled
    turns = turns.returning()
    assert turns.is_asleep and not turns.may_use and not turns.is_recalled
    assert not turns.asking().may_use


def test_a_job_joins_while_the_memory_of_the_host_holds_all_sleeping_members() -> None:
    full = group(member("a", host_bytes=60), member("b", host_bytes=40))
    assert "memory of the host in s" in str(refusal(full, member("c", host_bytes=1)))
    assert refusal(full, member("c", "t", host_bytes=100)) is None


def test_a_job_joins_only_if_it_stays_within_its_own_limit() -> None:
    """Alone 10 s, in the group 10 s, and a turn of 4 s of the other member in every step."""
    assert refusal(group(member("a")), member("b", limit=1.41)) is None
    assert "b could take more than 1.39 times" in str(refusal(group(member("a")), member("b", limit=1.39)))


def test_a_job_joins_only_if_the_others_stay_within_their_limits() -> None:
    assert "a could take more than 1.39 times" in str(refusal(group(member("a", limit=1.39)), member("b")))


def test_a_job_that_the_switches_alone_slow_down_too_much_does_not_join() -> None:
    assert refusal(EMPTY, member("a", step_s=11.0, limit=1.05)) is not None


def test_long_steps_of_another_member_delay_only_some_of_the_steps() -> None:
    """A turn of 40 s every 100 s or more takes 40 % of the time, so steps of 10 s take 10 / (1 - 0.4) s in the mean."""
    slow = replace(member("slow", step_s=100.0, turn_s=40.0), alone_s=100.0)
    assert refusal(group(slow), member("fast", limit=1.67)) is None
    assert refusal(group(slow), member("fast", limit=1.65)) is not None


def test_a_name_belongs_to_one_attempt() -> None:
    with pytest.raises(AssertionError, match="one attempt"):
        group(member("a"), member("a"))


def test_an_old_report_takes_nothing_back() -> None:
    assert Claim(2, 1).merged(Claim(1, 0)) == Claim(1, 0).merged(Claim(2, 1)) == Claim(2, 1)


def test_counters_that_were_read_are_those_of_one_member() -> None:
    found = group(member("a"), member("b")).granting("b", Grant(2, 1))
    grants = {each.member.name: each.grant for each in found.standings}
    assert grants == {"a": group(member("a")).standings[0].grant, "b": Grant(2, 1)}
