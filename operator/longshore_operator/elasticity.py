"""Decide what GPU pods do.

This passes the coordinator's reports to the policies, turns their decisions into an assignment, and keeps their memory
in the status.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from longshore.api.reasons import EventReason, RegroupUnavailableReason, RepurposeUnavailableReason
from longshore.api.rollout import Parallelism, RepurposeTrigger
from longshore.api.round_status import RepurposingBenefit, RolloutTimes, RoundKind, RoundSummary
from longshore.api.runtime_status import RuntimeStatus
from longshore.api.shapes import engine_pods, is_possible, replica_pods
from longshore.api.spec import Placement, RLJobSpec
from longshore.api.status import Assignment, Baseline, ConditionType, Overlay, PlannerStatus, RLJobStatus
from longshore.policy.parallelism_planner import ParallelismPlanner, RolloutProfile, best_sizes
from longshore.policy.scale_down import (
    AdaptiveRule,
    Benefit,
    MilestonePodLoad,
    ScaleDown,
    decide,
    pick_pods,
    unavailable_reason,
)
from longshore.policy.strategies import round_kinds, usual_period
from longshore_operator.context import Context, LifecycleProgress
from longshore_operator.plan import Event, Fact, Outcome
from longshore_operator.size import next_size


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Sizes that the planner chooses after the rounds that are over."""

    baseline: Baseline
    planner: PlannerStatus | None
    reason: str = ""
    events: tuple[Event, ...] = ()


def reconcile_elasticity(context: Context) -> Outcome:
    """Return the next assignment, and what was asked for and the shape of the job does not allow."""
    before, progress, spec = context.job.status, context.progress, _as_it_runs(context)
    kept = _outcome(before.assignment, before.planner)
    if progress.finished:
        return kept
    runtime = before.runtime or RuntimeStatus()
    assigned = _assign(context, spec, runtime) if progress.attempt else kept
    unavailable = {
        ConditionType.REPURPOSE_UNAVAILABLE: _repurpose_unavailable(spec, runtime),
        ConditionType.REGROUP_UNAVAILABLE: _regroup_unavailable(spec, runtime.tp_sizes),
    }
    return replace(assigned, conditions=unavailable)


def _as_it_runs(context: Context) -> RLJobSpec:
    """Return the spec with the worker pods that the coordinator uses."""
    spec, size = context.job.spec, context.runtime.size if context.runtime is not None else None
    # A coordinator can report any number, and the shape of a job is computed pod by pod.
    return spec.resized(min(size.workers, spec.workers.replicas)) if size is not None else spec


def _assign(context: Context, spec: RLJobSpec, runtime: RuntimeStatus) -> Outcome:
    """Turn the telemetry of this attempt into an assignment; the same telemetry again changes nothing.

    Overlays come from this attempt's telemetry only.
    """
    current, planner = context.job.status.assignment, context.job.status.planner
    size = next_size(context, current.epoch + 1)
    events = _rejection(current, runtime, context.observed.reported_rejection)
    why = _fresh_start(current, spec)
    if why:
        baseline = Baseline(tp_size=spec.rollout.engine.tensor_parallel_size)
        fresh = Assignment(epoch=current.epoch + 1, baseline=baseline, size=size, reason=why)
        return _outcome(fresh, _forgotten(planner, spec, runtime), events)
    sizes = _sizes(spec, current, planner, runtime)
    overlay, reason = _overlay(spec, current, runtime, context.progress)
    events += sizes.events
    if overlay is None and not sizes.reason and size == current.size:
        return _outcome(current, sizes.planner, events)
    resized = f"{size.workers} worker pods" if size is not None and size != current.size else ""
    assignment = Assignment(
        epoch=current.epoch + 1,
        baseline=sizes.baseline,
        overlay=overlay or _alive(current.overlay, runtime, context.progress),
        size=size,
        reason="; ".join(filter(None, (sizes.reason, reason, resized))),
    )
    key = f"epoch-{assignment.epoch}"
    if sizes.reason:
        events += (Event("Normal", EventReason.REGROUPING, sizes.reason, key),)
    if overlay is not None:
        events += (Event("Normal", EventReason.REPURPOSING, reason, key),)
    return _outcome(assignment, sizes.planner, events)


def _outcome(assignment: Assignment, planner: PlannerStatus | None, events: tuple[Event, ...] = ()) -> Outcome:
    return Outcome(events=events, status=RLJobStatus(assignment=assignment, planner=planner))


def _rejection(current: Assignment, runtime: RuntimeStatus, reported: int) -> tuple[Event, ...]:
    """Return an event if the coordinator could not carry out what is asked of it."""
    epoch = current.epoch
    if epoch == 0 or runtime.rejected_epoch != epoch or reported >= epoch:
        return ()
    message = f"assignment {epoch} was not carried out: {runtime.rejected_reason or 'no reason given'}"
    return (Event("Warning", EventReason.ASSIGNMENT_REJECTED, message, key=f"epoch-{epoch}"),)


def _fresh_start(current: Assignment, spec: RLJobSpec) -> str:
    """Return why the baseline begins with the size of the spec; empty while it holds."""
    engine, baseline = spec.rollout.engine, current.baseline
    if current.epoch == 0:
        return "the job starts"
    if baseline.tp_size != engine.tensor_parallel_size:
        return "tensorParallelSize changed"
    sizes = baseline.tp_sizes
    is_adaptive = engine.parallelism is Parallelism.ADAPTIVE
    if sizes and not (is_adaptive and sizes.keys() <= set(round_kinds(spec.rollout.strategy))):
        return "the spec changed"
    if len(_possible(spec, sizes.values())) < len(set(sizes.values())):
        return "engines of the chosen sizes do not fill the worker pods any more"
    return ""


def _forgotten(before: PlannerStatus | None, spec: RLJobSpec, runtime: RuntimeStatus) -> PlannerStatus | None:
    """Return a planner without memory, to which the rounds so far say nothing."""
    if spec.rollout.engine.parallelism is not Parallelism.ADAPTIVE:
        return None
    newest = max([before.round if before else 0, *(one.number for one in runtime.recent_rounds)])
    return PlannerStatus(round=newest)


def _sizes(spec: RLJobSpec, current: Assignment, before: PlannerStatus | None, runtime: RuntimeStatus) -> _Sizes:
    """Return the baseline after the rounds that are over.

    Which attempt ran them does not matter; a round that is repeated counts once.
    """
    baseline = current.baseline
    if spec.rollout.engine.parallelism is not Parallelism.ADAPTIVE:
        return _Sizes(baseline, None)
    rounds = _unseen(runtime.recent_rounds, before.round if before else 0)
    refused = runtime.refused_tp_size if runtime.rejected_epoch == current.epoch else 0
    possible = _possible(spec, runtime.tp_sizes)
    is_first = runtime.rollout_times is not None and not (before and before.state)
    if not (rounds or refused or is_first) or not possible or _regroup_unavailable(spec, runtime.tp_sizes) is not None:
        return _Sizes(baseline, before)
    planner, events = _planner(spec, possible, before, runtime.rollout_times)
    kinds = round_kinds(spec.rollout.strategy)
    reasons: dict[RoundKind, str] = {}
    newest = max([before.round if before else 0, *(one.number for one in rounds)])
    if is_first and any(planner.tp_size(kind) != baseline.tp_size for kind in kinds):
        reasons |= dict.fromkeys(kinds, "tensor-parallel sizes are the best by the job's profile")
        rounds = []  # They ran with other sizes.
    if refused:
        why = f"engines keep tensor-parallel size {runtime.tp_size}: those of size {refused} did not start"
        reasons |= dict.fromkeys(planner.refused(refused, runtime.tp_size), why)
    for one in rounds:
        regroup = planner.round_ended(one.kind, one.preemptions, one.requests) if one.kind in kinds else None
        reasons |= dict.fromkeys(regroup.kinds, regroup.reason) if regroup else {}
    sizes = {kind: planner.tp_size(kind) for kind in kinds if planner.tp_size(kind) != baseline.tp_size}
    after = PlannerStatus(round=newest, state=planner.export_state())
    if sizes == baseline.tp_sizes:
        return _Sizes(baseline, after, events=events)
    reason = "; ".join(dict.fromkeys(reasons.values())) or "sizes start again from tensorParallelSize"
    return _Sizes(Baseline(tp_size=baseline.tp_size, tp_sizes=sizes), after, reason, events)


def _possible(spec: RLJobSpec, tp_sizes: Iterable[int]) -> list[int]:
    """Return the sizes that suit the model and today's pods."""
    gpus, num_pods = spec.workers.gpus_per_pod, spec.workers.replicas
    return sorted(size for size in set(tp_sizes) if size > 0 and is_possible(gpus, num_pods, size))


def _unseen(rounds: Sequence[RoundSummary], newest: int) -> list[RoundSummary]:
    """Return the rounds that are newer than any before, each once."""
    unseen = []
    for one in rounds:
        if one.number > newest:
            unseen.append(one)
            newest = one.number
    return unseen


def _planner(
    spec: RLJobSpec, allowed: Sequence[int], before: PlannerStatus | None, times: RolloutTimes | None
) -> tuple[ParallelismPlanner, tuple[Event, ...]]:
    """Return the planner as it was left. A memory that this version cannot read is begun again, which an event says."""
    given = dict.fromkeys(round_kinds(spec.rollout.strategy), spec.rollout.engine.tensor_parallel_size)
    profile = _profile(times, given, allowed)
    period = usual_period(spec.rollout, spec.algorithm.prompts_per_step)
    default = best_sizes(profile, given, allowed, period) if profile is not None else given
    expected = _expected_preemptions(profile, default)
    planner = ParallelismPlanner(default, allowed, profile, expected, period)
    if before is None or not before.state:
        return planner, ()
    try:
        planner.load_state(before.state)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        message = f"the history of rounds up to {before.round} cannot be read and starts again: {error!r}"
        fresh = ParallelismPlanner(default, allowed, profile, expected, period)
        return fresh, (Event("Warning", EventReason.PLANNER_RESET, message, key=f"planner-{before.round}"),)
    return planner, ()


def _profile(times: RolloutTimes | None, kinds: Iterable[RoundKind], sizes: Sequence[int]) -> RolloutProfile | None:
    """Return the job's own profile of these sizes, if it knows each in every kind of round."""
    if times is None or any(size not in times.round_s.get(kind, {}) for kind in kinds for size in sizes):
        return None
    preemptions = {
        kind: {size: number for size, number in of_kind.items() if size in sizes}
        for kind, of_kind in times.preemptions.items()
    }
    return RolloutProfile(times.switch_s, times.preemption_s, times.round_s, preemptions)


def _expected_preemptions(profile: RolloutProfile | None, sizes: Mapping[RoundKind, int]) -> Mapping[RoundKind, float]:
    """Return the preemptions that the profile saw at these sizes, if it has them."""
    found = profile.num_preemptions if profile is not None else {}
    return {kind: found[kind][size] for kind, size in sizes.items() if size in found.get(kind, {})}


def _overlay(
    spec: RLJobSpec, current: Assignment, runtime: RuntimeStatus, progress: LifecycleProgress
) -> tuple[Overlay | None, str]:
    """Return the pods that train for the rest of the round that the coordinator of this attempt reports, and why."""
    this_round, known = runtime.round, current.overlay
    if not spec.rollout.repurposes or spec.placement is not Placement.COLOCATED or not progress.active:
        return None, ""
    if runtime.attempt != progress.attempt or this_round is None or this_round.load is None:
        return None, ""
    is_over = this_round.number <= runtime.step
    if is_over or (known and known.attempt == progress.attempt and known.round >= this_round.number):
        return None, ""
    repurposing = spec.rollout.repurposing
    reported = runtime.repurposing.get(this_round.kind)
    benefit = _benefit(reported) if reported is not None else None
    decision = decide(
        this_round.fraction_finished,
        _loads(spec, runtime),
        replica_pods(spec.workers, spec.trainer),
        this_round.load.projected_kv_peak_tokens,
        None if repurposing.trigger is RepurposeTrigger.FIXED else AdaptiveRule(benefit),
        engine_pods(spec.workers, runtime.tp_size or spec.rollout.engine.tensor_parallel_size),
    )
    if not isinstance(decision, ScaleDown):
        return None, ""
    pods = list(decision.pods)
    return Overlay(round=this_round.number, attempt=progress.attempt, trainer_pods=pods), decision.reason


def _loads(spec: RLJobSpec, runtime: RuntimeStatus) -> list[MilestonePodLoad]:
    """Return the load of each pod, each once.

    An engine whose cache holds nothing is taken for full.
    """
    assert runtime.round is not None and runtime.round.load is not None
    loads = {
        pod.pod: MilestonePodLoad(pod.pod, max(1, pod.gpus), max(1, pod.kv_capacity_tokens), pod.running_tokens)
        for pod in runtime.round.load.pods
        if pod.pod < spec.workers.replicas
    }
    return [loads[pod] for pod in sorted(loads)]


def _alive(overlay: Overlay | None, runtime: RuntimeStatus, progress: LifecycleProgress) -> Overlay | None:
    """Return an overlay whose round may still run; a dead one is not written again."""
    if overlay is None or overlay.attempt != progress.attempt:
        return None
    newest = max(runtime.step + 1, runtime.round.number if runtime.round else 0)
    return None if runtime.attempt == overlay.attempt and newest > overlay.round else overlay


def _benefit(reported: RepurposingBenefit) -> Benefit:
    return Benefit(reported.rollout_longer_s, reported.training_shorter_s, reported.wanted, reported.trial)


def _repurpose_unavailable(spec: RLJobSpec, runtime: RuntimeStatus) -> Fact | None:
    if not spec.rollout.repurposes:
        return None
    if spec.placement is Placement.DISAGGREGATED:
        message = "spec.placement: trainers have their own pods, so no pod goes from rollout to training"
        return Fact(True, RepurposeUnavailableReason.DISAGGREGATED, message)
    workers = spec.workers
    pods = [MilestonePodLoad(pod, max(1, workers.gpus_per_pod), 1, 0) for pod in range(workers.replicas)]
    if pick_pods(
        pods, replica_pods(spec.workers, spec.trainer), engine_pods(workers, spec.rollout.engine.tensor_parallel_size)
    ):
        return _costs_more(runtime) if spec.rollout.repurposing.trigger is RepurposeTrigger.ADAPTIVE else None
    message = f"spec.workers: {unavailable_reason(pods)}; every pod samples until the round ends"
    return Fact(True, RepurposeUnavailableReason.NO_POD_TO_SPARE, message)


def _costs_more(runtime: RuntimeStatus) -> Fact | None:
    """Return why repurposing pays in no kind of round that is known; None if it pays in one."""
    known = sorted((kind, _benefit(reported)) for kind, reported in runtime.repurposing.items())
    known = [(kind, benefit) for kind, benefit in known if benefit.rollout_longer_s is not None]
    if not known or any(benefit.is_wanted and not benefit.is_trial for _, benefit in known):
        return None
    figures = "; ".join(f"in {kind.lower()} rounds {benefit.described}" for kind, benefit in known)
    message = (
        f"spec.rollout.repurposing: pods continue to sample, because repurposing would make steps longer: {figures}"
    )
    return Fact(True, RepurposeUnavailableReason.COSTS_MORE, message)


def _regroup_unavailable(spec: RLJobSpec, tp_sizes: Sequence[int]) -> Fact | None:
    """Return why engines cannot regroup; `tp_sizes` are those that the coordinator reported as suitable."""
    engine, gpus = spec.rollout.engine, spec.workers.gpus_per_pod
    if engine.parallelism is not Parallelism.ADAPTIVE:
        return None
    if gpus == 0 or max(gpus, engine.tensor_parallel_size) == 1:
        message = f"spec.workers.gpusPerPod: pods of {gpus} GPUs allow one size of engines only"
        return Fact(True, RegroupUnavailableReason.TOO_FEW_GPUS, message)
    sizes = _possible(spec, tp_sizes)
    if not tp_sizes or (len(sizes) > 1 and engine.tensor_parallel_size in sizes):
        return None
    found = ", ".join(map(str, sizes)) or "none"
    message = (
        f"spec.rollout.engine.tensorParallelSize: engines keep {engine.tensor_parallel_size}; sizes that suit the "
        f"model and the pods: {found}"
    )
    return Fact(True, RegroupUnavailableReason.NO_OTHER_SIZE, message)
