"""The state of a run survives a checkpoint."""

import orjson
import pytest

from longshore.api.rollout import Strategy
from longshore.api.round_status import RoundKind
from longshore.api.runtime_status import HeldOutReward
from longshore.policy.draws import Draw
from longshore.policy.round import ResponseId
from longshore.policy.selection_bias import RewardRange
from longshore_runtime.backends.engine_protocol import Completion, FinishReason
from longshore_runtime.checkpoints.run_state import HeldOutScore, KindTotals, RunState
from longshore_runtime.data.prompt_record import PromptRecord
from longshore_runtime.rollout.batch import ScoredGroup, ScoredResponse
from longshore_runtime.telemetry.status_fields import held_out_reward
from longshore_runtime.trajectories.trajectory import EMPTY
from tests.unit.runtime.scripted import ScriptedEngines, build, runner


def test_exported_state_is_json_and_loads_equal() -> None:
    state = RunState(
        step=4,
        policy={"cursor": {"epoch": 0, "offset": 3, "num_prompts": 9}, "leftovers": [[0, 2]]},
        trained=16,
        zero_variance=3,
        kinds={RoundKind.SHORT: KindTotals(3, 1.5, 24, 1), RoundKind.LONG: KindTotals(1, 2.5, 8, 0)},
        held_out_before=HeldOutScore(0.2, None, (0.1, 0.3, None)),
        held_out_latest=HeldOutScore(0.4, 0.3, (0.4,)),
        evaluated_step=2,
        cut_tokens={ResponseId(Draw(1, 7), 3): 250},
        reward_range=RewardRange(-1.0, 2.0),
    )
    assert RunState.load(orjson.loads(orjson.dumps(state.export())), {}) == state


def test_cut_responses_are_remembered_until_their_draws_are_done() -> None:
    """A second round puts one draw off once more, and a third accepts it."""
    state, engines, policy = RunState(), ScriptedEngines(), build(Strategy.TAIL_BATCHING)
    waiting: list[int] = []
    while len(waiting) < 5:
        result = runner(engines, policy).run(draining=False)
        now = {one.response for group in result.groups for one in group.responses}
        is_again = bool(now & set(state.cut_tokens))
        assert state.shorter_again(result) == (0.0 if is_again else None)
        state = state.after_step(result, [], {}, state.policy_version + 1)
        assert not {one.draw for one in state.cut_tokens} & {group.draw for group in result.groups}
        assert all(0 < num_tokens <= 17 for num_tokens in state.cut_tokens.values())
        waiting.append(len({one.draw for one in state.cut_tokens}))
    assert waiting == [1, 2, 3, 4, 0], "the fifth round is long"


def held_out_group(epoch: int, index: int, *rewards: float) -> ScoredGroup:
    draw = Draw(epoch, index)
    responses = (
        ScoredResponse(
            ResponseId(draw, number),
            Completion(f"{draw}-{number}", EMPTY, FinishReason.STOP, 1),
            reward,
            timed_out=False,
        )
        for number, reward in enumerate(rewards)
    )
    return ScoredGroup(draw, tuple(responses))


PROMPTS = [PromptRecord(index, "", (index,), "x" * num_letters) for index, num_letters in enumerate((1, 1, 1, 9))]
"""The last one is the longest quartile."""


def test_of_a_held_out_prompt_that_was_replaced_there_is_no_score_and_none_twice() -> None:
    groups = [held_out_group(0, 0, 0.1, 0.3), held_out_group(0, 1, 0.4), held_out_group(0, 2, 0.6)]
    score = HeldOutScore.of([*groups, held_out_group(1, 0, 0.9)], PROMPTS)
    assert score == HeldOutScore(pytest.approx(0.4), None, (0.2, 0.4, 0.6, None))
    assert held_out_reward(RunState(held_out_before=score)) == HeldOutReward(before=0.4)


def test_without_longer_and_shorter_answers_no_quartile_is_the_longest() -> None:
    prompts = [PromptRecord(index, "", (index,), "42") for index in range(4)]
    score = HeldOutScore.of([held_out_group(0, index, 0.5) for index in range(4)], prompts)
    assert (score.overall, score.longest_quartile) == (0.5, None)


def test_the_longest_quartile_is_the_mean_of_those_that_have_a_score() -> None:
    prompts = [*PROMPTS, *PROMPTS]
    score = HeldOutScore.of([held_out_group(0, 3, 0.5), held_out_group(0, 0, 0.0)], prompts)
    assert (score.overall, score.longest_quartile) == (0.25, 0.5)
