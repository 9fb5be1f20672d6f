"""What every round policy promises, whatever engines and rewards do, in every combination of its parts."""

import json
import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.api.rollout import (
    AdmissionSettings,
    Leftovers,
    OnPolicy,
    PartialRolloutSettings,
    ReorderRolloutSettings,
    Rollout,
    Strategy,
    TailBatchingSettings,
)
from longshore.policy import partial_rollout, reorder_rollout
from longshore.policy.draws import DrawCursor
from longshore.policy.engine_load import EngineLoad
from longshore.policy.round import AcceptedGroup, ResponseId, Round
from longshore.policy.round_plan import Gates
from longshore.policy.round_policy import BatchShape, RoundPolicy
from longshore.policy.scale_down import Milestones
from longshore.policy.tail_batching import TailBatching as TailBatchingPolicy
from longshore.policy.waiting import WaitingDraws
from tests.properties import examples
from tests.unit.policy.rounds import FakeRollout, Job, relaxed_partial

shapes = st.builds(BatchShape, st.integers(1, 6), st.integers(2, 5))
factors = st.floats(1.0, 3.0)


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    """Any strategy, with any gates, leftovers and acceptance that validation allows with it."""
    strategy = draw(st.sampled_from(Strategy))
    keeps = draw(st.booleans()) or strategy is Strategy.PARTIAL_ROLLOUT
    can_keep = strategy in (Strategy.TAIL_BATCHING, Strategy.AUTO, Strategy.REORDER_ROLLOUT, Strategy.PARTIAL_ROLLOUT)
    max_versions = draw(st.integers(1, 4))
    rollout = Rollout(
        on_policy=OnPolicy.RELAXED if keeps else OnPolicy.STRICT,
        strategy=strategy,
        leftovers=Leftovers.KEEP_TOKENS if keeps and can_keep else None,
        tail_batching=TailBatchingSettings(prompt_factor=draw(factors), response_factor=draw(factors)),
        partial_rollout=PartialRolloutSettings(
            group_factor=draw(st.floats(1.0, float(max_versions))), max_policy_versions=max_versions
        ),
        reorder_rollout=ReorderRolloutSettings(
            max_postponements=draw(st.integers(1, 3)),
            group_factor=draw(st.floats(1.0, 6.0)),
            length_grouping=draw(st.booleans()),
        ),
        admission=AdmissionSettings(
            frontier_width=draw(st.none() | st.integers(1, 4)),
            max_active_per_engine=draw(st.none() | st.integers(1, 9)),
            adaptive=draw(st.booleans()),
        ),
    )
    return Job(rollout, draw(shapes), dynamic_sampling=draw(st.booleans()), is_mixed=draw(st.booleans()))


@settings(max_examples=examples(120))
@given(jobs(), st.integers(0, 12), st.floats(0, 0.4), st.floats(0, 0.6), st.booleans(), st.integers(0, 2**32))
def test_every_draw_is_consumed_once_and_every_batch_is_exact(
    job: Job, num_rounds: int, rejection: float, zero_variance: float, episodes: bool, seed: int
) -> None:
    policy, rng = job.policy(), random.Random(seed)
    fake = FakeRollout(policy, job, rng, rejection=rejection, zero_variance=zero_variance, episodes=episodes)
    for _ in range(num_rounds):
        assert len(fake.round().accepted) == job.shape.num_prompts
        fake.audit.assert_invariants(policy)


@settings(max_examples=examples(120))
@given(jobs(), st.floats(0.05, 0.5), st.floats(0, 0.3), st.booleans(), st.integers(0, 2**32))
def test_whatever_engines_do_every_draw_is_consumed_once_and_every_batch_is_exact(
    job: Job, upheaval: float, rejection: float, episodes: bool, seed: int
) -> None:
    policy, rng = job.policy(), random.Random(seed)
    fake = FakeRollout(policy, job, rng, rejection=rejection, zero_variance=0.2, upheaval=upheaval, episodes=episodes)
    for _ in range(4):
        assert len(fake.round().accepted) == job.shape.num_prompts
        fake.audit.assert_invariants(policy)


@given(jobs(), st.integers(0, 8), st.integers(0, 2**32))
def test_draining_empties_the_queue(job: Job, num_rounds: int, seed: int) -> None:
    policy = job.policy()
    fake = FakeRollout(policy, job, random.Random(seed))
    for _ in range(num_rounds):
        fake.round()
    while policy.num_deferred:
        before = policy.num_deferred
        end = fake.round(draining=True)
        assert 0 < len(end.accepted) <= job.shape.num_prompts
        assert policy.num_deferred == before - len(end.accepted)
    fake.audit.assert_invariants(policy)


@settings(max_examples=examples(30))
@given(jobs(), st.integers(0, 6), st.integers(0, 2**32))
def test_a_restored_policy_continues_as_if_never_stopped(job: Job, num_rounds: int, seed: int) -> None:
    def ends(stop_after: int | None) -> list[object]:
        rng = random.Random(seed)
        policy = job.policy()
        fake = FakeRollout(policy, job, rng, zero_variance=0.3)
        seen: list[object] = []
        for number in range(num_rounds + 3):
            if number == stop_after:
                state = json.loads(json.dumps(policy.export_state()))
                policy = job.policy()
                policy.load_state(state)
                fake.use(policy)
            seen.append(fake.round())
        return seen

    assert ends(stop_after=num_rounds) == ends(stop_after=None)


@given(jobs(), st.integers(0, 2**32))
def test_the_same_events_give_the_same_decisions(job: Job, seed: int) -> None:
    first, second = (FakeRollout(job.policy(), job, random.Random(seed), rejection=0.2) for _ in range(2))
    assert [first.round() for _ in range(4)] == [second.round() for _ in range(4)]


@given(jobs(), st.lists(st.tuples(st.integers(0, 1), st.floats(0, 1), st.integers(0, 9)), max_size=20))
def test_a_round_goes_on_whatever_the_engines_report(job: Job, loads: list[tuple[int, float, int]]) -> None:
    """Reports may hold requests back; they never stop a round."""
    policy = job.policy()
    fake = FakeRollout(policy, job, random.Random(1))
    fake.before_each_event = lambda: [
        policy.engine_load(engine, EngineLoad(0, 0, usage, count, at_s=0.0)) for engine, usage, count in loads
    ]
    assert len(fake.round().accepted) == job.shape.num_prompts


@settings(max_examples=examples(120))
@given(jobs(), st.none() | st.floats(0.01, 0.99), st.randoms(use_true_random=False))
def test_no_pod_leaves_a_round_before_the_last_launch_that_its_batch_needs(
    job: Job, fixed_share: float | None, rng: random.Random
) -> None:
    """Which groups prove to be without a gradient is known afterwards only, so without dynamic sampling."""
    job = replace(job, dynamic_sampling=False)
    policy = job.policy()
    fake = FakeRollout(policy, job, rng)
    for _ in range(4):
        milestones, repurposings = Milestones(fixed_share), list[int]()

        def look(milestones: Milestones = milestones, repurposings: list[int] = repurposings) -> None:
            assert policy.progress.num_launched == len(fake.launched)
            if not repurposings and milestones.is_due(policy.progress):
                repurposings.append(len(fake.launched))

        fake.before_each_event = look
        accepted = {ResponseId(group.draw, index) for group in fake.round().accepted for index in group.responses}
        assert all(accepted.isdisjoint(fake.launched[num_launched:]) for num_launched in repurposings)


def test_a_gated_round_repurposes_once_everything_is_launched() -> None:
    job = Job(
        Rollout(strategy=Strategy.SYNCHRONOUS, admission=AdmissionSettings(max_active_per_engine=4)), BatchShape(6, 4)
    )
    policy, milestones = job.policy(), Milestones()
    fake = FakeRollout(policy, job, random.Random(1))
    looks: list[int] = []
    fake.before_each_event = lambda: looks.append(len(fake.launched)) if milestones.is_due(policy.progress) else None
    fake.round()
    assert looks and set(looks) == {24}


@given(st.integers(1, 40), st.integers(0, 3), st.integers(0, 100))
def test_an_epoch_goes_once_through_all_prompts_and_epochs_stay_distinct(num: int, epochs: int, seed: int) -> None:
    draws = DrawCursor(num, seed).take(num * (epochs + 1))
    assert len(set(draws)) == len(draws)
    for epoch in range(epochs + 1):
        assert sorted(draw.index for draw in draws if draw.epoch == epoch) == list(range(num))


def test_a_policy_refuses_what_another_strategy_left_over() -> None:
    partial = Job(relaxed_partial(), BatchShape(2, 2))
    policy = partial.policy()
    FakeRollout(policy, partial, random.Random(1)).round()
    with pytest.raises(ValueError, match=r"rollout.strategy: 2 draws still wait under PartialRollout"):
        Job(Rollout(strategy=Strategy.TAIL_BATCHING), BatchShape(2, 2)).policy().load_state(policy.export_state())


def test_a_cursor_refuses_another_order() -> None:
    with pytest.raises(ValueError, match=r"algorithm.seed: it is 2 now and was 1"):
        DrawCursor(10, seed=2).load_state(DrawCursor(10, seed=1).export_state())


def test_a_cursor_refuses_a_checkpoint_of_other_data() -> None:
    state = DrawCursor(10, seed=1).export_state()
    with pytest.raises(ValueError, match="it has 9 prompts now and had 10"):
        DrawCursor(9, seed=1).load_state(state)


def _lose_a_deferred_draw(patch: pytest.MonkeyPatch) -> None:
    whole = WaitingDraws.left_over
    patch.setattr(WaitingDraws, "left_over", lambda self, leftovers: whole(self, leftovers[1:]))


def _queue_a_draw_twice(patch: pytest.MonkeyPatch) -> None:
    once = WaitingDraws.left_over
    patch.setattr(WaitingDraws, "left_over", lambda self, leftovers: once(self, [*leftovers, *leftovers[:1]]))


def _accept_one_response_more(patch: pytest.MonkeyPatch) -> None:
    def group(self: Round, draw: object) -> AcceptedGroup:
        return AcceptedGroup(draw, tuple(self._open[draw].finished))  # type: ignore[arg-type,index]

    def starts_with_more(self: Round, *arguments: object) -> None:
        original(self, *arguments)  # type: ignore[arg-type]
        self._num_responses += 1

    original = Round.__init__
    patch.setattr(Round, "_group", group)
    patch.setattr(Round, "__init__", starts_with_more)


def _count_no_versions(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(partial_rollout, "num_due", lambda *arguments: 0)
    patch.setattr(reorder_rollout, "num_due", lambda *arguments: 0)


def _keep_tokens_in_strict_rounds(patch: pytest.MonkeyPatch) -> None:
    strict = TailBatchingPolicy.__init__
    patch.setattr(
        TailBatchingPolicy,
        "__init__",
        lambda self, *arguments, keeps_tokens: strict(self, *arguments, keeps_tokens=True),
    )


def _forget_a_replacement(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Round, "num_missing", property(lambda self: 0))


def _widen_the_frontier(patch: pytest.MonkeyPatch) -> None:
    exact = Round.__init__

    def wider(self: Round, plan: object, num_responses: int, acceptance: object, gates: Gates) -> None:
        wide = Gates(gates.frontier_width and gates.frontier_width + 1, gates.max_running and gates.max_running + 1)
        exact(self, plan, num_responses, acceptance, wide)  # type: ignore[arg-type]

    patch.setattr(Round, "__init__", wider)


def _forget_postponements_at_a_restart(patch: pytest.MonkeyPatch) -> None:
    whole = WaitingDraws.export_state
    patch.setattr(WaitingDraws, "export_state", lambda self: [[*entry[:2], 0, *entry[3:]] for entry in whole(self)])


def _queue_what_has_no_variance(patch: pytest.MonkeyPatch) -> None:
    whole = RoundPolicy.group_rewarded
    patch.setattr(
        RoundPolicy, "group_rewarded", lambda self, draw, zero_variance: whole(self, draw, zero_variance=False)
    )


MUTATIONS: tuple[Callable[[pytest.MonkeyPatch], None], ...] = (
    _lose_a_deferred_draw,
    _queue_a_draw_twice,
    _accept_one_response_more,
    _count_no_versions,
    _keep_tokens_in_strict_rounds,
    _forget_a_replacement,
    _widen_the_frontier,
    _forget_postponements_at_a_restart,
    _queue_what_has_no_variance,
)

SHAPE = BatchShape(3, 2)
SCENARIOS = (
    Job(Rollout(strategy=Strategy.TAIL_BATCHING), SHAPE, dynamic_sampling=True),
    Job(Rollout(strategy=Strategy.TAIL_BATCHING), SHAPE),
    Job(relaxed_partial(group_factor=2.0, max_policy_versions=2), SHAPE),
    Job(
        Rollout(strategy=Strategy.REORDER_ROLLOUT, reorder_rollout=ReorderRolloutSettings(max_postponements=1)),
        SHAPE,
    ),
    Job(
        Rollout(strategy=Strategy.GROUP_PIPELINE, admission=AdmissionSettings(frontier_width=1)),
        SHAPE,
        groups_per_update=1,
    ),
)


def _run_scenarios() -> None:
    """A fixed sample of what the properties above explore, restarts included."""
    for job in SCENARIOS:
        for seed in range(8):
            policy = job.policy()
            fake = FakeRollout(policy, job, random.Random(seed), rejection=0.1, zero_variance=0.3)
            for _ in range(8):
                assert len(fake.round().accepted) == job.shape.num_prompts
                fake.audit.assert_invariants(policy)
                state, policy = policy.export_state(), job.policy()
                policy.load_state(state)
                fake.use(policy)


def test_the_scenarios_hold_for_the_policies_as_they_are() -> None:
    _run_scenarios()


@pytest.mark.parametrize("mutate", MUTATIONS, ids=lambda mutate: mutate.__name__.strip("_"))
def test_a_broken_policy_fails(mutate: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(monkeypatch)
    with pytest.raises(AssertionError):
        _run_scenarios()
