"""A whole job on the virtual clock: rounds, rewards, updates, publications."""

from collections.abc import Collection
from functools import cache, partial
from statistics import fmean

from longshore.api.objectives.advantages import are_equal
from longshore.api.round_status import RoundKind
from longshore.policy.draws import Draw, DrawCursor
from longshore.policy.group_pipeline import GroupPipeline
from longshore.policy.parallelism_planner import ParallelismPlanner
from longshore.policy.progress import RoundProgress
from longshore.policy.round import ResponseId
from longshore.policy.round_policy import RoundPolicy
from longshore.policy.scale_down import Milestones
from longshore.policy.strategies import round_kinds, round_policy, usual_period
from longshore.rounds.protocol import RoundTotals
from longshore.sim.engine import EngineShape
from longshore.sim.events import EventQueue
from longshore.sim.fleet import SimFleet
from longshore.sim.job import SimJob
from longshore.sim.phases import StreamedTraining, training_phase
from longshore.sim.repurposing import SimRepurposing
from longshore.sim.result import SimResult, SpanRecorder, StepRecord, Work
from longshore.sim.rewards import RewardStage
from longshore.sim.round import SimRound


def simulate(
    job: SimJob,
    num_steps: int,
    *,
    keeps_spans: bool = True,
    drains: bool = False,
    policy: RoundPolicy | None = None,
) -> SimResult:
    """Run a job for so many steps. The same job gives the same result, whatever else runs.

    `drains`: the last of these steps admit only draws that wait, so that every draw which was started is trained on.
    `policy`: instead of the job's own; of another system, with which Longshore is compared.
    """
    assert num_steps >= 1, "there is nothing to simulate"
    simulation = _Simulation(job, SpanRecorder(keeps_spans), policy or _own_policy(job))
    steps = tuple(simulation.step(draining=drains and simulation.fills(left)) for left in range(num_steps, 0, -1))
    return SimResult(
        job.num_gpus,
        steps,
        tuple(simulation.recorder.spans),
        simulation.mean_tokens(simulation.draws),
        simulation.mean_tokens(simulation.trained_draws),
        simulation.num_groups_in_cache,
    )


class _Simulation:
    def __init__(self, job: SimJob, recorder: SpanRecorder, policy: RoundPolicy) -> None:
        self._job = job
        self.recorder = recorder
        self._queue = EventQueue()
        self._policy = policy
        rewards = job.rewards
        self._workers = RewardStage(
            rewards.times,
            rewards.num_workers,
            rewards.adaptive_timeout,
            num_requests=rewards.num_requests,
            knows_reference_times=rewards.knows_reference_times,
        )
        self._training = training_phase(job, self._queue, recorder)
        self._repurposing: SimRepurposing | None = None
        if isinstance(self._training, StreamedTraining):
            self._repurposing = SimRepurposing(job, self._training, self._queue)
        self._tp_size = job.rollout.engine.tensor_parallel_size
        self._planner = _planner(job) if job.plans_parallelism else None
        self._fleet = self._build_fleet(self._tp_size)
        self._kept: dict[ResponseId, int] = {}
        """Tokens of responses that the next round has from earlier ones."""
        self._newest: dict[ResponseId, int] = {}
        """Those of them that the last round sampled."""
        self.draws: set[Draw] = set()
        """Whatever was in play."""
        self.trained_draws: list[Draw] = []

    def mean_tokens(self, draws: Collection[Draw]) -> float:
        """Return the mean tokens of R0 responses of every draw."""
        lengths, count = self._job.lengths, self._job.shape.num_responses
        return fmean(lengths.response_tokens(ResponseId(draw, index)) for draw in draws for index in range(count))

    @property
    def num_groups_in_cache(self) -> int | None:
        """Groups that fill the KV cache of an engine, as the group pipeline found them; None for other policies."""
        return self._policy.num_groups_in_cache if isinstance(self._policy, GroupPipeline) else None

    def fills(self, num_steps: int) -> bool:
        """Return whether the draws that wait are enough for so many steps."""
        return self._policy.num_deferred >= num_steps * self._job.shape.num_prompts

    def step(self, *, draining: bool) -> StepRecord:
        """Simulate a round, its training and the publication of the weights."""
        start_s = self._queue.now_s
        num_updates = self._policy.next_num_updates(draining=draining)
        self._training.begin_round(self._job.update_sizes(num_updates))
        newest = self._newest
        this_round, totals = self._roll_out(draining=draining)
        end = totals.end
        complete_s = self._queue.now_s
        if self._planner is not None:
            self._planner.round_ended(end.kind, this_round.num_preemptions, totals.num_launched)
        trained_s = self._training.finish()
        published_s = self._publish(trained_s)
        self._wait_until(published_s)
        if self._repurposing is not None:
            self._repurposing.step_ended(totals, published_s - start_s)
        first_start_s = self._training.first_start_s
        responses = [tokens for group in end.accepted for tokens in this_round.samples_of(group)]
        corrects = [this_round.corrects(group) for group in end.accepted]
        return StepRecord(
            kind=end.kind,
            tp_size=self._tp_size,
            start_s=start_s,
            rollout_s=totals.batch_complete_s - start_s,
            reward_wait_s=complete_s - totals.batch_complete_s,
            train_s=trained_s - complete_s,
            publish_s=published_s - trained_s,
            num_trained_samples=len(responses),
            num_trained_tokens=sum(responses),
            num_stale_tokens=sum(this_round.num_stale_tokens(group) for group in end.accepted),
            num_resumed_tokens=sum(newest[response] for response in this_round.resumed),
            max_response_tokens=max(responses),
            num_sampled_tokens=this_round.num_sampled_tokens,
            num_dropped_tokens=this_round.num_dropped_tokens(end),
            num_launched=totals.num_launched,
            num_aborted=totals.num_aborted,
            num_preemptions=this_round.num_preemptions,
            num_zero_variance=len(end.zero_variance) + sum(map(are_equal, corrects)),
            num_correct=sum(map(sum, corrects)),
            bubble_share=1 - self.recorder.take_busy_s() / (self._job.num_gpus * (published_s - start_s)),
            first_dispatch_s=(complete_s if first_start_s is None else first_start_s) - start_s,
            trainer_compute_s=self._training.compute_s,
            scale_downs=tuple(self._repurposing.reasons) if self._repurposing else (),
            episodes_s=this_round.episodes.total_s,
            environments_s=this_round.episodes.environments_s,
        )

    def _roll_out(self, *, draining: bool) -> tuple[SimRound, RoundTotals]:
        self._regroup(self._policy.next_kind(draining=draining))
        milestones = self._milestones()
        this_round = SimRound(
            self._job, self._policy, self._fleet, self._queue, self._workers, self._kept, self._training.train_on,
            milestones, self._milestone, self._repurposing.pace if self._repurposing is not None else None,
        )  # fmt: skip
        totals = this_round.run(draining=draining)
        end = totals.end
        before, self._kept = self._kept, this_round.kept(end)
        self._newest = {response: tokens - before.get(response, 0) for response, tokens in self._kept.items()}
        if self._repurposing is not None:
            self._repurposing.round_ended(end.kind, totals.finished_tokens)
        accepted = [group.draw for group in end.accepted]
        self.trained_draws += accepted
        self.draws.update(accepted, end.deferred, end.zero_variance)
        return this_round, totals

    def _regroup(self, kind: RoundKind) -> None:
        """Rebuild the engines where the planner wants another tensor-parallel size for this kind of round."""
        if self._planner is None or self._planner.tp_size(kind) == self._tp_size:
            return
        self._tp_size = self._planner.tp_size(kind)
        ready_s = self._queue.now_s + self._job.engine_costs.regroup_s(self._tp_size)
        gpus = tuple(range(self._job.gpus.num_gpus))
        self.recorder.busy(gpus, Work.SWITCH, self._queue.now_s, ready_s, f"regroup to {self._tp_size}")
        self._wait_until(ready_s)
        self._fleet = self._build_fleet(self._tp_size)

    def _milestones(self) -> Milestones | None:
        """Return the moments at which to look in the round that starts; None unless training is streamed."""
        return self._repurposing.begin_round(self._tp_size) if self._repurposing is not None else None

    def _milestone(self, this_round: SimRound, progress: RoundProgress) -> None:
        assert self._repurposing is not None, "nobody else asks for milestones"
        self._repurposing.milestone(this_round, self._fleet, progress)

    def _publish(self, trained_s: float) -> float:
        """Publish new weights, once GPUs that take turns are back in the rollout; return when engines have them."""
        job, costs = self._job, self._job.engine_costs
        shared = job.trainer.pool is None
        ready_s = trained_s + (costs.to_rollout_s(job.num_gpus) if shared else 0.0)
        gpus = tuple(range(job.num_gpus))
        self.recorder.busy(gpus, Work.SWITCH, trained_s, ready_s, "to rollout")
        published_s = ready_s + costs.publish_s(self._tp_size)
        self.recorder.busy(gpus, Work.PUBLISH, ready_s, published_s, "publish weights")
        self._fleet.forget_prefixes()
        return published_s

    def _wait_until(self, time_s: float) -> None:
        is_there = []
        self._queue.at(time_s, lambda: is_there.append(True))
        self._queue.run_until(lambda: bool(is_there))

    def _build_fleet(self, tp_size: int) -> SimFleet:
        engine, costs = self._job.rollout.engine, self._job.engine_costs
        shape = EngineShape(
            # Engines ask for the few batch sizes that there are again and again.
            step_cost=cache(partial(costs.decode_step, tp_size=tp_size)),
            prefill_s=partial(costs.prefill_s, tp_size=tp_size),
            kv_capacity_tokens=self._job.kv_capacity_tokens(tp_size),
            kv_fields=self._job.kv_fields,
            max_num_seqs=engine.max_num_seqs,
            reserves_up_to=self._job.lengths.max_tokens if self._job.samples_with_sglang else None,
        )
        return SimFleet(shape, self._job.gpus.split(tp_size), self._queue, self.recorder)


def _own_policy(job: SimJob) -> RoundPolicy:
    return round_policy(
        job.rollout,
        job.shape,
        DrawCursor(job.num_prompts, job.seed),
        groups_per_update=job.groups_per_update,
        dynamic_sampling=job.dynamic_sampling,
    )


def _planner(job: SimJob) -> ParallelismPlanner:
    """Return a planner that starts from the job's size, and may take every size whose engines start."""
    kinds, configured = round_kinds(job.rollout.strategy), job.rollout.engine.tensor_parallel_size
    return ParallelismPlanner(
        dict.fromkeys(kinds, configured),
        [size for size in job.possible_tp_sizes if size == configured or _fits(job, size)],
        period=usual_period(job.rollout, job.shape.num_prompts),
    )


def _fits(job: SimJob, tp_size: int) -> bool:
    try:
        capacity = job.kv_capacity_tokens(tp_size)
    except ValueError:
        return False
    if job.max_context_tokens is not None:
        return capacity >= job.max_context_tokens
    # Nobody says how long prompts may be: as long as responses.
    return capacity > 2 * job.lengths.max_tokens
