"""What a round asks of its driver, event by event.

Draws and responses are written as in `tests.unit.policy.tables`. `0+A0 A1` gives requests to
engine 0, `0-A0` stops one.
"""

from collections import deque
from collections.abc import Callable

import pytest

from longshore.api.rollout import PartialRolloutSettings, TailBatchingSettings
from longshore.policy.draws import Draw
from longshore.policy.partial_rollout import PartialRollout
from longshore.policy.round_plan import Acceptance
from longshore.policy.round_policy import NO_RULES, AdmissionRules, BatchShape, RoundPolicy
from longshore.policy.scale_down import Milestones
from longshore.policy.synchronous import Synchronous
from longshore.policy.tail_batching import TailBatching
from longshore.rounds import messages
from longshore.rounds.protocol import (
    MAX_DROPPED_BATCHES,
    MAX_FRUITLESS_LOSSES,
    MAX_REJECTED_BATCHES,
    RoundProtocol,
)
from longshore.rounds.requests import TRANSITIONS, RequestState
from tests.unit.policy.rounds import QUIET
from tests.unit.policy.tables import DRAWS, cursor, response, responses


def synchronous() -> RoundPolicy:
    """Two draws with two responses each."""
    return Synchronous(BatchShape(2, 2), cursor())


def speculative(rules: AdmissionRules = NO_RULES) -> RoundPolicy:
    """Two draws with two responses each; the first response that finishes is the batch."""
    return TailBatching(BatchShape(1, 1), cursor(), TailBatchingSettings(prompt_factor=2, response_factor=2), rules)


class Script:
    """A round that gets what happens, and writes down what it asks for about engines and milestones."""

    def __init__(
        self, policy: RoundPolicy, *engines: int, milestones: Milestones | None = None, episodes: str = ""
    ) -> None:
        """Responses to these draws are episodes."""
        acting = {DRAWS[letter] for letter in episodes}
        self.protocol = RoundProtocol(policy, milestones, has_environment=acting.__contains__)
        self.start = written(self.protocol.start(engines or (0, 1), 0.0))

    def finish(self, engine: int, names: str) -> list[str]:
        return self._ended(engine, names, finished=True)

    def stop(self, engine: int, names: str) -> list[str]:
        return self._ended(engine, names, finished=False)

    def reward(self, letter: str) -> list[str]:
        return self.receive(messages.GroupRewarded(DRAWS[letter], zero_variance=False))

    def answer(self, name: str) -> list[str]:
        return self.receive(messages.EpisodeAnswered(response(name)))

    def end(self, name: str) -> list[str]:
        return self.receive(messages.EpisodeEnded(response(name), messages.EpisodeLength(1, 1, 0.5), 1))

    def fail(self, name: str) -> list[str]:
        return self.receive(messages.EpisodeFailed(response(name), "a broken environment"))

    def receive(self, event: messages.RoundEvent) -> list[str]:
        return written(self.protocol.receive(event, 0.0))

    def _ended(self, engine: int, names: str, *, finished: bool) -> list[str]:
        requests = [messages.EndedRequest(response(name), 1, finished, 1) for name in names.split()]
        return self.receive(messages.RequestsEnded(engine, requests, QUIET))


def written(commands: list[messages.RoundCommand]) -> list[str]:
    lines = []
    for command in commands:
        match command:
            case messages.AddRequests(engine, some):
                lines.append(f"{engine}+{responses(some)}")
            case messages.AbortRequests(engine, some):
                lines.append(f"{engine}-{responses(some)}")
            case messages.StartEpisodes(some):
                lines.append(f"start {responses(some)}")
            case messages.GiveTurns(some):
                lines.append(f"turn {responses(some)}")
            case messages.CancelEpisodes(some):
                lines.append(f"cancel {responses(some)}")
            case messages.AnnounceEmptied():
                lines.append("drained")
            case messages.MeasureLoad():
                lines.append("measure")
            case messages.ReplaceEngine(engine):
                lines.append(f"replace {engine}")
    return lines


def test_a_round_waits_for_what_it_has_stopped_and_for_the_rewards_of_its_batch() -> None:
    script = Script(speculative())
    assert script.start == ["0+A0 A1", "1+B0 B1"]
    assert script.finish(1, "B1") == ["1-B0", "0-A0 A1"]
    assert script.protocol.has_batch
    assert script.stop(0, "A0 A1") == script.reward("B") == []
    assert not script.protocol.is_over
    assert script.stop(1, "B0") == []
    assert script.protocol.result.num_aborted == 3


def test_requests_of_a_retired_engine_move_and_it_is_drained_once() -> None:
    script = Script(synchronous())
    assert script.receive(messages.EnginesRetired((1,))) == ["1-B0 B1"]
    assert script.stop(1, "B0") == ["0+B0"]
    assert script.finish(1, "B1") == ["drained"], "it ended before it could stop"
    assert script.receive(messages.EngineJoined(1)) == [], "it has left the round"
    assert script.finish(0, "A0 A1 B0") == []
    assert script.protocol.num_moved == 1


def test_what_moves_and_is_then_not_needed_is_stopped_once_and_placed_nowhere() -> None:
    script = Script(speculative())
    assert script.receive(messages.EnginesRetired((1,))) == ["1-B0 B1"]
    assert script.finish(0, "A0") == ["0-A1"]
    assert script.stop(1, "B0 B1") == ["drained"]


def test_a_lost_engine_is_replaced_and_nobody_waits_for_what_it_was_stopping() -> None:
    script = Script(speculative())
    assert script.finish(0, "A0") == ["0-A1", "1-B0 B1"]
    assert script.receive(messages.EngineLost(1, "so")) == ["replace 1"]
    script.reward("A")
    script.stop(0, "A1")
    assert script.protocol.is_over


def test_what_a_lost_engine_ran_starts_elsewhere_and_late_reports_of_it_are_ignored() -> None:
    script = Script(synchronous())
    assert script.receive(messages.EngineLost(1, "so")) == ["0+B0 B1", "replace 1"]
    assert script.finish(1, "B0") == []
    assert script.finish(0, "A0 A1 B1") == []
    assert not script.protocol.has_batch
    script.finish(0, "B0")
    assert script.protocol.has_batch


def test_a_late_report_of_a_lost_engine_does_not_make_another_one_look_empty() -> None:
    script = Script(synchronous(), 0, 1, 2)
    assert script.start == ["0+A0 A1", "1+B0 B1"]
    assert script.receive(messages.EngineLost(0, "so")) == ["2+A0 A1", "replace 0"]
    assert script.receive(messages.EnginesRetired((2,))) == ["2-A0 A1"]
    assert script.stop(0, "A0 A1") == []
    assert script.stop(2, "A0 A1") == ["1+A0 A1", "drained"]


def test_a_retired_engine_that_is_lost_before_it_has_stopped_is_drained() -> None:
    script = Script(synchronous())
    assert script.receive(messages.EnginesRetired((1,))) == ["1-B0 B1"]
    assert script.receive(messages.EngineLost(1, "so")) == ["0+B0 B1", "replace 1", "drained"]


def one_group_per_engine() -> RoundPolicy:
    """Four draws with one response each."""
    settings = TailBatchingSettings(prompt_factor=1, response_factor=1)
    return TailBatching(BatchShape(4, 1), cursor(), settings, AdmissionRules(frontier_width=1))


def test_with_an_engine_less_fewer_groups_run_and_with_one_more_again_as_many() -> None:
    retired = Script(one_group_per_engine())
    assert retired.start == ["0+A0", "1+B0"]
    retired.receive(messages.EnginesRetired((1,)))
    retired.stop(1, "B0")
    assert retired.finish(0, "A0") == [], "B runs"
    assert retired.finish(0, "B0") == ["0+C0"]
    lost = Script(one_group_per_engine())
    assert lost.receive(messages.EngineLost(1, "so")) == ["0+B0", "replace 1"]
    assert lost.finish(0, "A0") == []
    assert lost.receive(messages.EngineJoined(1)) == ["1+C0"]


def test_without_engines_requests_wait_for_one() -> None:
    script = Script(synchronous(), 0)
    assert script.receive(messages.EngineLost(0, "so")) == ["replace 0"]
    assert script.receive(messages.EngineJoined(0)) == ["0+A0 A1 B0 B1"]


def test_what_waits_for_an_engine_and_is_not_needed_is_gone_at_once() -> None:
    script = Script(speculative(AdmissionRules(acceptance=Acceptance.TRAINABLE)), 0)
    script.finish(0, "A0")
    script.receive(messages.EngineLost(0, "so"))
    assert script.reward("A") == []
    assert script.protocol.is_over


def test_a_request_that_its_engine_stops_unasked_continues() -> None:
    assert Script(synchronous()).stop(1, "B0") == ["1+B0"]


def test_a_milestone_is_watched_until_the_batch_is_complete_or_engines_retire() -> None:
    script = Script(synchronous(), milestones=Milestones(fixed_share=0.5))
    assert script.finish(0, "A0") == []
    assert script.finish(0, "A1") == ["measure"]
    whole = Script(Synchronous(BatchShape(1, 1), cursor()), milestones=Milestones(fixed_share=0.5))
    assert whole.finish(0, "A0") == [], "there is nothing left to gain"
    retired = Script(synchronous(), milestones=Milestones(fixed_share=0.5))
    retired.receive(messages.EnginesRetired((1,)))
    assert "measure" not in retired.finish(0, "A0 A1")


def test_a_batch_that_is_carried_over_can_be_at_its_milestone_from_the_start() -> None:
    policy = PartialRollout(BatchShape(2, 2), cursor(), PartialRolloutSettings(group_factor=2.0, max_policy_versions=5))
    first = Script(policy, 0)
    assert first.finish(0, "A0 A1 B0 B1 C0 C1") == ["0-D0 D1"]
    first.stop(0, "D0 D1")
    first.reward("A")
    first.reward("B")
    assert first.protocol.result.end.deferred == (DRAWS["C"], DRAWS["D"])
    assert Script(policy, 0, milestones=Milestones(fixed_share=0.5)).start == ["0+D0 D1 E0 E1 F0 F1", "measure"]


def outcomes(policy: RoundPolicy, reward: Callable[[Draw], messages.RoundEvent]) -> tuple[int, messages.GiveUp]:
    """A round whose responses finish at once, and whose groups get this: how many do before it gives up."""
    protocol, num_groups = RoundProtocol(policy), 0
    waiting = deque(protocol.start((0,), 0.0))
    while True:
        match waiting.popleft():
            case messages.GiveUp() as given_up:
                return num_groups, given_up
            case messages.AddRequests(engine, some):
                ended = [messages.EndedRequest(one, 1, True, 1) for one in some]
                waiting += protocol.receive(messages.RequestsEnded(engine, ended, QUIET), 0.0)
            case messages.ScoreGroup(group):
                num_groups += 1
                waiting.extendleft(reversed(protocol.receive(reward(group.draw), 0.0)))


def trainable(num_groups: int) -> RoundPolicy:
    """Groups with one response, which count if they teach something."""
    rules = AdmissionRules(acceptance=Acceptance.TRAINABLE)
    return TailBatching(BatchShape(num_groups, 1), cursor(), TailBatchingSettings(), rules)


@pytest.mark.parametrize("num_groups", [1, 3])
def test_a_round_whose_groups_teach_nothing_gives_up_and_names_the_field(num_groups: int) -> None:
    seen, given_up = outcomes(trainable(num_groups), lambda draw: messages.GroupRewarded(draw, zero_variance=True))
    assert seen == MAX_DROPPED_BATCHES * num_groups + 1
    assert given_up.reason.startswith(f"algorithm.dynamicSampling: {seen} groups of one round had equal rewards")
    assert given_up.is_users_mistake


@pytest.mark.parametrize("num_groups", [1, 3])
def test_a_round_whose_groups_get_no_rewards_gives_up_with_the_last_reason(num_groups: int) -> None:
    policy = TailBatching(BatchShape(num_groups, 1), cursor(), TailBatchingSettings())
    seen, given_up = outcomes(policy, lambda draw: messages.RewardsFailed(draw, f"no server for {draw.index}"))
    assert seen == MAX_REJECTED_BATCHES * num_groups + 1
    assert given_up.reason.startswith(f"reward: rewards of {seen} groups of a round failed. Last error: ")
    assert "Last error: no server for" in given_up.reason
    assert given_up.is_users_mistake


def test_an_engine_lost_repeatedly_ends_the_round_unless_it_finishes_something() -> None:
    def lose(protocol: RoundProtocol) -> list[messages.GiveUp]:
        commands = protocol.receive(messages.EngineLost(1, "ECC error"), 0.0)
        protocol.receive(messages.EngineJoined(1), 0.0)
        return [one for one in commands if isinstance(one, messages.GiveUp)]

    script = Script(synchronous(), 0, 1)
    for _ in range(2):
        assert [lose(script.protocol) for _ in range(MAX_FRUITLESS_LOSSES)] == [[]] * MAX_FRUITLESS_LOSSES
        there = script.protocol.receive(messages.EngineLost(0, "so"), 0.0)
        script.receive(messages.EngineJoined(0))
        moved = next(one for one in there if isinstance(one, messages.AddRequests) and one.engine == 1)
        script.finish(1, responses(moved.responses[:1]))
    for _ in range(MAX_FRUITLESS_LOSSES):
        lose(script.protocol)
    (given_up,) = lose(script.protocol)
    assert given_up.reason.startswith("engine 1 was lost 6 times without finishing a response: ECC error")
    assert not given_up.is_users_mistake


@pytest.mark.parametrize("state", [state for state in RequestState if state is not RequestState.ENDED])
def test_a_request_can_end_from_every_state_and_never_after_its_end(state: RequestState) -> None:
    reached = {state}
    for _ in RequestState:
        reached |= {after for (begin, _), after in TRANSITIONS.items() if begin in reached}
    assert RequestState.ENDED in reached
    assert RequestState.ENDED not in {begin for begin, _ in TRANSITIONS}


def test_an_episode_returns_to_the_engine_that_holds_its_tokens() -> None:
    script = Script(synchronous(), episodes="B")
    assert script.start == ["start B0 B1", "0+A0 A1"]
    assert script.answer("B1") == ["1+B1"]
    assert script.answer("B0") == ["1+B0"]
    assert script.finish(0, "A0 A1") == []
    assert script.finish(1, "B0 B1") == ["turn B0 B1"], "what finishes is a turn"
    assert script.answer("B0") == ["1+B0"], "not to the engine that is idle"
    assert script.end("B1") == []
    assert script.finish(1, "B0") == ["turn B0"]
    assert script.end("B0") == []
    script.reward("A")
    script.reward("B")
    assert script.protocol.result.num_aborted == 0


def test_an_episode_that_is_not_needed_is_cancelled_wherever_it_is() -> None:
    script = Script(speculative(), episodes="AB")
    assert script.start == ["start A0 A1 B0 B1"]
    assert script.answer("A0") == ["0+A0"]
    assert script.answer("B0") == ["1+B0"]
    assert script.finish(0, "A0") == ["turn A0"]
    assert script.end("A0") == ["1-B0", "cancel A1 B0 B1"]
    assert script.answer("A1") == script.end("B1") == script.fail("B1") == [], "news that crossed the end"
    assert script.finish(1, "B0") == [], "a turn that ended before it could stop"
    script.reward("A")
    assert script.protocol.result.num_aborted == 3


def test_an_episode_whose_engine_is_lost_continues_on_another() -> None:
    script = Script(synchronous(), episodes="B")
    script.answer("B0")
    script.finish(1, "B0")
    assert script.receive(messages.EngineLost(1, "so")) == ["replace 1"]
    assert script.answer("B0") == ["0+B0"], "between two turns it is on no engine"


def test_a_group_with_a_failed_episode_is_replaced_by_a_fresh_draw() -> None:
    script = Script(synchronous(), episodes="BC")
    script.answer("B0")
    assert script.fail("B1") == ["start C0 C1", "1-B0", "cancel B0 B1"]
    assert script.stop(1, "B0") == []
    script.finish(0, "A0 A1")
    for name in ("C0", "C1"):
        (placed,) = script.answer(name)
        assert script.finish(int(placed[0]), name) == [f"turn {name}"]
        script.end(name)
    script.reward("A")
    script.reward("C")
    assert script.protocol.result.rejected == {DRAWS["B"]: "a broken environment"}
    assert [group.draw for group in script.protocol.result.end.accepted] == [DRAWS["A"], DRAWS["C"]]


def one_at_once() -> RoundPolicy:
    """Two draws with two responses each, of which an engine gets one at a time."""
    return Synchronous(BatchShape(2, 2), cursor(), AdmissionRules(max_active_per_engine=1))


def test_an_episode_in_its_environment_leaves_its_place_on_the_engine_to_others() -> None:
    script = Script(one_at_once(), 0, episodes="A")
    assert script.start == ["start A0", "start A1", "0+B0"]
    assert script.answer("A1") == script.answer("A0") == []
    assert script.finish(0, "B0") == ["0+A1"], "before B1, whose draw comes later"
    assert script.finish(0, "A1") == ["turn A1", "0+A0"]
    assert script.answer("A1") == []
    assert script.finish(0, "A0") == ["turn A0", "0+A1"]
    assert script.end("A0") == []
    assert script.finish(0, "A1") == ["turn A1", "0+B1"]
    assert script.end("A1") == script.finish(0, "B1") == []
    assert script.protocol.has_batch


def test_an_episode_that_waits_for_a_gate_is_cancelled_at_once() -> None:
    script = Script(speculative(AdmissionRules(max_active_per_engine=1)), 0, episodes="A")
    assert script.start == ["start A0", "start A1", "0+B0"]
    assert script.answer("A0") == []
    assert script.finish(0, "B0") == ["cancel A0 A1"]
    script.reward("B")
    assert script.protocol.is_over


def test_a_group_whose_episodes_all_act_leaves_the_frontier_to_the_next() -> None:
    script = Script(Synchronous(BatchShape(3, 2), cursor(), AdmissionRules(frontier_width=1)), 0, episodes="AB")
    assert script.start == ["start A0 A1", "start B0 B1", "0+C0 C1"]
    assert script.answer("B0") == script.answer("A0") == []
    assert script.finish(0, "C0") == []
    assert script.finish(0, "C1") == ["0+A0"], "the first of the data"
    assert script.answer("A1") == ["0+A1"], "A is in the frontier"
    assert script.finish(0, "A0") == ["turn A0"]
    assert script.finish(0, "A1") == ["turn A1", "0+B0"]


def test_a_milestone_waits_for_episodes_that_a_gate_holds() -> None:
    policy = Synchronous(BatchShape(3, 1), cursor(), AdmissionRules(max_active_per_engine=1))
    script = Script(policy, 0, milestones=Milestones(fixed_share=0.3), episodes="AB")
    assert script.start == ["start A0", "start B0", "0+C0"]
    assert script.answer("A0") == script.answer("B0") == []
    assert script.finish(0, "C0") == ["0+A0"], "B waits for the engine"
    assert script.finish(0, "A0") == ["turn A0", "0+B0"]
    assert script.end("A0") == ["measure"]
