"""What a round makes of responses that act in an environment: turns, tokens that nobody sampled, and failures."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from longshore.api.algorithm import Algorithm
from longshore.api.rollout import Strategy
from longshore.policy.draws import Draw
from longshore.policy.round import ResponseId
from longshore.rounds.messages import EpisodeEnded
from longshore_runtime.backends.engine_protocol import Completion, FinishReason
from longshore_runtime.data.prompt_record import PromptRecord
from longshore_runtime.environments.events import EpisodeGivenUp, EpisodeOver, TurnWanted
from longshore_runtime.environments.pod_protocol import FailureCause
from longshore_runtime.errors import UserError
from longshore_runtime.rollout.batch import RoundResult
from longshore_runtime.rollout.round_runner import RoundRunner
from longshore_runtime.trainer.updates import batch_samples
from longshore_runtime.trajectories.episode import Branch, Episode
from longshore_runtime.trajectories.trajectory import EMPTY, Trajectory, token_ids
from tests.unit.runtime.scripted import (
    CountingEngines,
    Observer,
    ScriptedEngines,
    ScriptedScorer,
    StillClock,
    build,
    first_draws,
    request_of,
)

PROMPT = token_ids([40, 41])
OBSERVED = token_ids([99, 98])
MAX_TOKENS = 48
"""Limit of a trajectory, which an environment may set below that of the job."""


@dataclass
class ScriptedEnvironments:
    """Answers twice and ends at the third turn, unless `on_turn` puts something else into the events."""

    engines: ScriptedEngines
    has: Callable[[Draw], bool] = lambda draw: True
    on_turn: Callable[["ScriptedEnvironments", ResponseId, int], bool] = lambda world, response, number: False
    """Returns whether it has answered."""
    responses: list[ResponseId] = field(default_factory=list)
    """Responses by the numbers of their episodes."""
    num_turns: Counter[int] = field(default_factory=Counter)
    cancelled: list[int] = field(default_factory=list)

    def start(self, response: ResponseId) -> int:
        number = len(self.responses)
        self.responses.append(response)
        self.engines.put(TurnWanted(response, number, 0, PROMPT, EMPTY, MAX_TOKENS))
        return number

    def give_turn(self, number: int, completion: Completion) -> None:
        response = self.responses[number]
        self.num_turns[number] += 1
        if self.on_turn(self, response, number):
            return
        if self.num_turns[number] < 3:
            trajectory = completion.trajectory + Trajectory.observed(OBSERVED)
            self.engines.put(TurnWanted(response, number, self.num_turns[number], PROMPT, trajectory, MAX_TOKENS))
        else:
            self.engines.put(over(response, number, completion.trajectory))

    def cancel(self, numbers: Sequence[int]) -> None:
        self.cancelled += numbers


def over(response: ResponseId, number: int, trajectory: Trajectory, *, is_cut: bool = False) -> EpisodeOver:
    said = [{"role": "assistant", "content": "first"}, {"role": "user", "content": "no"}]
    said += [{"role": "assistant", "content": "last"}]
    branch = Branch(PROMPT, None, said, trajectory)
    return EpisodeOver(response, number, Episode((branch,), None, 0.5, 3, 0, 0.0, 0), is_cut)


def run(world: ScriptedEnvironments, strategy: Strategy = Strategy.SYNCHRONOUS) -> RoundResult:
    engines = world.engines
    return RoundRunner(
        build(strategy, num_prompts=4),
        engines,
        ScriptedScorer(engines, reward=lambda place, completion: float(place)),
        engines,  # type: ignore[arg-type]  # Of the queue, only `get` is used.
        request_of,
        StillClock(),
        Observer(),
        environments=world,
    ).run(draining=False)


def test_a_turn_goes_on_from_all_before_it_and_observations_are_not_trained_on() -> None:
    world = ScriptedEnvironments(ScriptedEngines())
    result = run(world)
    records = [PromptRecord(index, "", token_ids([1]), "") for index in range(50)]
    algorithm = Algorithm(steps=1, prompts_per_step=4, responses_per_prompt=2, max_response_tokens=64)
    samples = batch_samples(result.groups, records, algorithm, policy_version=7)
    assert len(samples) == 8
    for sample in samples:
        trajectory = sample.trajectory
        assert len(trajectory.turns) == 3
        assert [run.policy_version for run in trajectory.runs] == [7, None, 7, None, 7]
        observed = [place for place, is_sampled in enumerate(trajectory.mask) if not is_sampled]
        assert trajectory.tokens[observed].tolist() == [99, 98, 99, 98]
        assert sample.loss_mask is not None and (sample.loss_mask == trajectory.mask).all()
        assert sample.prompt_tokens.tolist() == PROMPT.tolist(), "the prompt that the environment began with"
    requests = world.engines.requests
    assert requests and all(one.prompt_tokens.tolist() == PROMPT.tolist() for one in requests)
    assert {one.max_tokens for one in requests} == {MAX_TOKENS}


def test_what_is_scored_is_the_last_turn_and_how_the_episode_ended() -> None:
    world = ScriptedEnvironments(ScriptedEngines(), on_turn=_cut_at_once)
    for group in run(world).groups:
        for one in group.responses:
            assert (one.completion.text, one.completion.finish_reason) == ("last", FinishReason.LENGTH)
            assert one.completion.episode is not None and one.completion.episode.reward == 0.5


def _cut_at_once(world: ScriptedEnvironments, response: ResponseId, number: int) -> bool:
    world.engines.put(over(response, number, Trajectory.sampled(7, [5], [-1.0]), is_cut=True))
    return True


def test_an_attempt_that_begins_anew_keeps_no_token_of_the_one_before() -> None:
    def fail_once(world: ScriptedEnvironments, response: ResponseId, number: int) -> bool:
        if world.num_turns[number] != 2:
            return False
        world.engines.put(TurnWanted(response, number, 0, PROMPT, EMPTY, MAX_TOKENS))
        return True

    world = ScriptedEnvironments(ScriptedEngines(), on_turn=fail_once)
    for group in run(world).groups:
        for one in group.responses:
            assert len(one.completion.trajectory.turns) == 1, "the third turn is the first one of the new attempt"


def test_a_failed_episode_replaces_its_group_and_the_reason_is_kept() -> None:
    broken = first_draws(2)[1]

    def fail(world: ScriptedEnvironments, response: ResponseId, number: int) -> bool:
        if response.draw == broken:
            failures: tuple[FailureCause, ...] = ("timeout", "exception", "timeout")
            reason = "environment games: broken"
            world.engines.put(EpisodeGivenUp(response, number, reason, is_users_mistake=False, failures=failures))
        return response.draw == broken

    world = ScriptedEnvironments(ScriptedEngines(), on_turn=fail)
    result = run(world)
    assert result.rejected == {broken: "environment games: broken"}
    assert result.episode_failures == {"timeout": 2, "exception": 1}
    assert len(result.groups) == 4 and broken not in {group.draw for group in result.groups}


def test_an_environment_that_can_never_work_ends_the_job_with_its_reason() -> None:
    def refuse(world: ScriptedEnvironments, response: ResponseId, number: int) -> bool:
        world.engines.put(EpisodeGivenUp(response, number, "environments[games].importPath: no", is_users_mistake=True))
        return True

    with pytest.raises(UserError, match=r"environments\[games\].importPath: no"):
        run(ScriptedEnvironments(ScriptedEngines(), on_turn=refuse))


def test_tail_batching_cancels_episodes_that_are_not_among_the_first() -> None:
    world = ScriptedEnvironments(ScriptedEngines())
    result = run(world, Strategy.TAIL_BATCHING)
    accepted = {one.response for group in result.groups for one in group.responses}
    cancelled = {world.responses[number] for number in world.cancelled}
    assert len(accepted) == 8
    assert cancelled == set(world.responses) - {ResponseId(*one) for one in accepted}


def test_observed_tokens_are_not_among_the_sampled_ones_that_are_used() -> None:
    engines = CountingEngines(num_engines=1)
    result = run(ScriptedEnvironments(engines), Strategy.TAIL_BATCHING)
    used = [one.completion.trajectory for group in result.groups for one in group.responses]
    num_used = sum(int(trajectory.mask.sum()) for trajectory in used)
    assert num_used < sum(map(len, used))
    assert result.num_used_tokens == num_used
    assert result.dropped_token_share == pytest.approx(1 - num_used / engines.num_tokens)
    ended = [message.length for _, message in result.messages if isinstance(message, EpisodeEnded)]
    assert {(length.num_turns, length.observed_tokens) for length in ended} == {(3, 4)}


def test_prompts_without_an_environment_are_sampled_beside_episodes() -> None:
    world = ScriptedEnvironments(ScriptedEngines(), has=lambda draw: draw.index % 2 == 0)
    for group in run(world).groups:
        for one in group.responses:
            assert (one.completion.episode is not None) == (group.draw.index % 2 == 0)
