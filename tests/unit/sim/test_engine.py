"""The event-driven engine takes the steps of a token-by-token one, without taking them one by one."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.policy.draws import Draw
from longshore.policy.round import ResponseId
from longshore.sim.costs import StepCost
from longshore.sim.engine import EngineShape, SimEngine, SimRequest
from tests.properties import examples
from tests.unit.sim.stepwise_engine import Command, Outcome, run_stepwise


def shape(kv_capacity_tokens: int = 10_000, max_num_seqs: int = 64, reserves_up_to: int | None = None) -> EngineShape:
    return EngineShape(
        step_cost=lambda running: StepCost(0.01 + 0.001 * running, 1e-5),
        prefill_s=lambda tokens: 1e-4 * tokens,
        kv_capacity_tokens=kv_capacity_tokens,
        max_num_seqs=max_num_seqs,
        reserves_up_to=reserves_up_to,
    )


def response(number: int, index: int = 0) -> ResponseId:
    return ResponseId(Draw(0, number), index)


def run(engine_shape: EngineShape, commands: list[Command]) -> tuple[dict[ResponseId, Outcome], int]:
    """Drives the event-driven engine; commands come before what the engine does at the same time."""
    engine = SimEngine(engine_shape)
    pending = sorted(commands, key=lambda command: command.at_s)
    outcomes: dict[ResponseId, Outcome] = {}
    while True:
        wake_s = engine.wake_s()
        if pending and (wake_s is None or pending[0].at_s <= wake_s):
            command = pending.pop(0)
            if command.add is not None:
                engine.add([command.add], command.at_s)
            else:
                assert command.abort is not None
                engine.abort([command.abort], command.at_s)
        elif wake_s is not None:
            for end in engine.advance():
                outcomes[end.response] = Outcome(wake_s, end.num_tokens, end.finished)
        else:
            return outcomes, engine.num_preemptions


@st.composite
def workloads(draw: st.DrawFn) -> list[Command]:
    commands = []
    for number in range(draw(st.integers(1, 12))):
        total = draw(st.integers(1, 60))
        request = SimRequest(
            response(number // 2, number % 2),
            prompt_tokens=draw(st.integers(1, 20)),
            total_tokens=total,
            kept_tokens=draw(st.integers(0, total - 1)),
        )
        at_s = draw(st.floats(0, 2))
        commands.append(Command(at_s, add=request))
        if draw(st.booleans()):
            commands.append(Command(at_s + draw(st.floats(0, 2)), abort=request.response))
    return commands


@settings(max_examples=examples(150), deadline=None)
@given(workloads(), st.integers(82, 400), st.integers(1, 8), st.none() | st.integers(60, 61))
def test_jumping_gives_what_stepping_gives(
    commands: list[Command], capacity: int, max_num_seqs: int, reserves_up_to: int | None
) -> None:
    assert_like_stepping(shape(capacity, max_num_seqs, reserves_up_to), commands)


@pytest.mark.parametrize("seed", range(3))
def test_jumping_gives_what_stepping_gives_where_sglang_preempts_again_and_again(seed: int) -> None:
    rng = random.Random(seed)
    commands = [
        Command(rng.uniform(0.0, 60.0), add=SimRequest(response(n), rng.randint(1, 50), rng.randint(100, 300)))
        for n in range(400)
    ]
    assert assert_like_stepping(shape(4_000, reserves_up_to=300), commands) > 5


def assert_like_stepping(engine_shape: EngineShape, commands: list[Command]) -> int:
    """Returns the preemptions."""
    outcomes, num_preemptions = run(engine_shape, commands)
    expected, expected_preemptions = run_stepwise(engine_shape, commands)
    assert num_preemptions == expected_preemptions
    assert outcomes.keys() == expected.keys()
    for key, outcome in outcomes.items():
        assert (outcome.num_tokens, outcome.finished) == (expected[key].num_tokens, expected[key].finished)
        assert outcome.at_s == pytest.approx(expected[key].at_s, rel=1e-9)
    return num_preemptions


@settings(deadline=None)
@given(st.lists(st.integers(20, 200), min_size=1, max_size=10), st.integers(231, 600))
def test_preemption_costs_time_and_no_response(totals: list[int], capacity: int) -> None:
    commands = [Command(0.0, add=SimRequest(response(n), 1, total)) for n, total in enumerate(totals)]
    tight, num_preemptions = run(shape(capacity), commands)
    roomy, _ = run(shape(100_000), commands)
    assert tight.keys() == roomy.keys()
    last_tight, last_roomy = (max(outcome.at_s for outcome in outcomes.values()) for outcomes in (tight, roomy))
    if num_preemptions:
        assert last_tight > last_roomy


def test_the_youngest_request_is_preempted_and_resumes_with_its_tokens() -> None:
    commands = [Command(0.0, add=SimRequest(response(n), 10, 50)) for n in range(2)]
    outcomes, num_preemptions = run(shape(kv_capacity_tokens=80), commands)
    assert num_preemptions == 1
    older, younger = outcomes[response(0)], outcomes[response(1)]
    assert older.at_s < younger.at_s
    steps = shape().step_cost
    # Together until each holds 40 tokens, then the older alone to its 60th, then the younger from its prefill on.
    together = sum(steps(2).step_s(2 * (10 + token)) for token in range(30))
    alone = sum(steps(1).step_s(10 + token) for token in range(30, 50))
    assert older.at_s == pytest.approx(shape().prefill_s(20) + together + alone)
    # The prompt is still in the prefix cache.
    assert younger.at_s == pytest.approx(older.at_s + shape().prefill_s(30) + alone)


def test_the_prompt_of_a_group_is_computed_once_per_engine_until_the_weights_change() -> None:
    engine = SimEngine(shape(max_num_seqs=1))
    ends = []
    for index in range(3):
        if index == 2:
            engine.forget_prefixes()
        start_s = ends[-1] if ends else 0.0
        engine.add([SimRequest(response(0, index), 100, 1)], start_s)
        while (wake_s := engine.wake_s()) is not None:
            engine.advance()
            ends.append(wake_s)
    took = [ends[1], ends[3] - ends[1], ends[5] - ends[3]]
    assert took[0] == pytest.approx(took[2])
    assert took[0] - took[1] == pytest.approx(shape().prefill_s(100))


def test_tokens_and_cache_use_can_be_asked_in_the_middle_of_a_jump() -> None:
    engine = SimEngine(shape())
    request = SimRequest(response(0), 10, 100, kept_tokens=5)
    engine.add([request], 0.0)
    engine.advance()
    cost, prefill_s = shape().step_cost(1), shape().prefill_s(15)
    after_seven_s = prefill_s + sum(cost.step_s(15 + token) for token in range(7))
    assert list(engine.tokens_at(after_seven_s + 1e-6)) == [(request, 12)]
    assert list(engine.tokens_at(after_seven_s - 1e-6)) == [(request, 11)]
    assert engine.kv_tokens_at(after_seven_s + 1e-6) == 22


def test_a_request_that_could_never_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot hold a response of 101 tokens with its prompt"):
        SimEngine(shape(kv_capacity_tokens=100)).add([SimRequest(response(0), 1, 100)], 0.0)


def num_started(reserves_up_to: int | None) -> int:
    """Started of 100 requests that come at once, each with 256 of the 150,000 tokens that the KV cache holds."""
    engine = SimEngine(shape(150_000, 100, reserves_up_to))
    engine.add([SimRequest(response(n), 256, 1_000) for n in range(100)], 0.0)
    engine.advance()
    return engine.num_running


def test_sglang_keeps_room_for_what_running_requests_may_add() -> None:
    # The first prefill computes a chunk of 8,192 tokens: 32 requests, for each of which there is 256 + 4,096. In the
    # second, 0.7 times 4,096 are kept for each of these, which leaves 50,057 tokens: for 11 more.
    assert num_started(4_096) == 32 + 11
    assert num_started(None) == 100
