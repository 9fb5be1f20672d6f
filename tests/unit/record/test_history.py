"""What a round's messages tell of its responses: each is followed from engine to engine until it ends."""

import itertools
from collections import Counter, defaultdict

from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.record.history import Absence, EngineStay, Message, busy_spans, history
from longshore.record.model import StayEnd
from longshore.rounds import messages
from tests.properties import examples
from tests.unit.policy.rounds import QUIET, Job
from tests.unit.policy.tables import response
from tests.unit.policy.test_round_policies import jobs
from tests.unit.record.facts import played

A, B = response("A0"), response("B0")
_GOES_ON = (StayEnd.MOVED, StayEnd.LOST, StayEnd.TURNED)


def ended(engine: int, name: str, num_tokens: int, *, finished: bool = True) -> Message:
    return messages.RequestsEnded(engine, [messages.EndedRequest(response(name), num_tokens, finished, 1)], QUIET)


def test_a_response_that_migrates_has_a_stay_on_each_engine() -> None:
    found = history(
        [
            (0.0, messages.AddRequests(0, (A,))),
            (3.0, messages.EnginesRetired((0,))),
            (3.5, ended(0, "A0", 7, finished=False)),
            (3.5, messages.AddRequests(1, (A,))),
            (3.5, messages.AnnounceEmptied()),
            (9.0, ended(1, "A0", 20)),
        ]
    )
    assert found.stays == [
        EngineStay(A, 0, 0.0, 3.5, 7, StayEnd.MOVED),
        EngineStay(A, 1, 3.5, 9.0, 20, StayEnd.FINISHED),
    ]
    assert (found.retired_s, found.drained_s) == ({0: 3.0}, 3.5)


def test_work_of_a_lost_engine_restarts_elsewhere_and_its_later_reports_do_not_count() -> None:
    found = history(
        [
            (0.0, messages.AddRequests(0, (A,))),
            (2.0, messages.EngineLost(0, "so")),
            (2.0, messages.AddRequests(1, (A,))),
            (2.5, ended(0, "A0", 9)),
            (4.0, messages.EngineJoined(0)),
            (6.0, ended(1, "A0", 30)),
        ]
    )
    assert [(stay.engine, stay.end_s, stay.num_tokens, stay.end) for stay in found.stays] == [
        (0, 2.0, 0, StayEnd.LOST),
        (1, 6.0, 30, StayEnd.FINISHED),
    ]
    assert found.absences == [Absence(0, 2.0, 4.0)]


def test_an_engine_is_busy_while_it_has_any_response() -> None:
    stays = [
        EngineStay(A, 0, 1.0, 4.0, 1, StayEnd.FINISHED),
        EngineStay(B, 0, 2.0, 3.0, 1, StayEnd.FINISHED),
        EngineStay(A, 0, 6.0, 7.0, 1, StayEnd.FINISHED),
        EngineStay(B, 0, 7.0, 8.0, 1, StayEnd.FINISHED),
    ]
    assert busy_spans(stays) == [(1.0, 4.0), (6.0, 8.0)]


@settings(max_examples=examples(60), deadline=None)
@given(jobs(), st.integers(0, 2**32))
def test_whatever_happens_every_launched_response_is_followed_to_its_end(job: Job, seed: int) -> None:
    for one in played(job, seed, num_rounds=1):
        found, totals = history(one.facts.messages), one.facts.totals
        by_response: dict[object, list[EngineStay]] = defaultdict(list)
        for stay in found.stays:
            by_response[stay.response].append(stay)
        assert by_response.keys() == set(one.fake.launched)
        for stays in by_response.values():
            assert all(before.end_s <= after.start_s for before, after in itertools.pairwise(stays))
            assert all(stay.end in _GOES_ON for stay in stays[:-1]), "it had ended"
            assert stays[-1].end is not StayEnd.MOVED, "it has left for nowhere"
        ends = Counter(stay.end for stay in found.stays)
        # One that still waited for another engine when the batch was complete has gone nowhere.
        assert ends[StayEnd.MOVED] <= totals.num_moved
        assert ends[StayEnd.FINISHED] == len(totals.finished_tokens)


def test_waits_for_environments_are_known_also_of_an_episode_that_is_cut_off() -> None:
    found = history(
        [
            (0.0, messages.StartEpisodes((A, B))),
            (2.0, messages.EpisodeAnswered(A)),
            (3.0, messages.AddRequests(0, (A,))),
            (4.0, ended(0, "A0", 9)),
            (4.0, messages.GiveTurns((A,))),
            (9.0, messages.EpisodeAnswered(A)),
            (9.0, messages.AddRequests(0, (A,))),
            (10.0, ended(0, "A0", 20)),
            (10.0, messages.GiveTurns((A,))),
            (13.0, messages.EpisodeEnded(A, messages.EpisodeLength(20, 2, 10.0), 7)),
            (13.0, messages.CancelEpisodes((B,))),
        ]
    )
    assert [(stay.end_s, stay.environment_s, stay.end) for stay in found.stays] == [
        (4.0, 5.0, StayEnd.TURNED),
        (10.0, 3.0, StayEnd.FINISHED),
    ]
    assert found.environment_s == {A: 10.0, B: 13.0}
