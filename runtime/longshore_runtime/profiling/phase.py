"""The profiling phase of a job: measure unless there is a profile that fits, and report it for the planner."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import structlog
from pydantic import ValidationError

from longshore.api.reasons import NoticeReason
from longshore.api.rollout import Parallelism
from longshore.api.round_status import RolloutTimes
from longshore.api.runtime_status import ProgressUnit, RuntimeActivity
from longshore.api.spec import Placement, Profiling, RLJobSpec
from longshore.api.training import DEFAULT_MICRO_BATCH_TOKENS
from longshore.checks.model_limits import possible_tp_sizes
from longshore.sim.job import default_lengths
from longshore.sim.profile import Profile, ProfileMismatch, Subject
from longshore.sim.rollout_profile import rollout_profile
from longshore_runtime.cluster.placement import ActorPlacement
from longshore_runtime.process.durable import sync, write_whole
from longshore_runtime.profiling.judge_probe import measure_judges
from longshore_runtime.profiling.profiler import Machine, Profiler, Scope
from longshore_runtime.profiling.subject import read_config, subject_of
from longshore_runtime.profiling.trainer_probe import TrainerLimits
from longshore_runtime.step.parts import Parts
from longshore_runtime.telemetry.recorder import Recorder

log = structlog.get_logger()

FILE: Final = "profile.json"
"""Name of the profile's file in the output directory of the job."""


def profiled(spec: RLJobSpec, parts: Parts, model: Path, judge_placement: ActorPlacement) -> bool:
    """Make sure that the job has a profile; return whether it was measured now, so that the session cannot train.

    `model`: its checkpoint, as this pod sees it; `judge_placement`: where a colocated judge runs.
    """
    path = parts.storage.output_dir / FILE
    subject = subject_of(spec, model)
    profile = read_fitting(path, subject, parts.recorder.notice)
    if profile is not None:
        report(profile, spec, parts.recorder)
        return False
    config = read_config(model)
    sizes = possible_tp_sizes(
        config, spec.workers.gpus_per_pod, spec.workers.replicas, spec.rollout.engine.tensor_parallel_size
    )
    profiler = Profiler(
        Machine(parts.engines, parts.trainers, parts.events, parts.clock),
        scope_of(spec, config, sizes),
        parts.recorder.activity,
        partial(parts.recorder.progress, ProgressUnit.MEASUREMENTS),
    )
    profiler.run()
    judges = [function for function in spec.reward.functions if function.is_colocated]
    if judges:
        parts.recorder.activity(RuntimeActivity.PROFILE_JUDGES)
        parts.rewards.stop()
        measure_judges(
            judges,
            judge_placement,
            spec.storage.output,
            spec.model.max_context_tokens,
            profiler.figures,
            partial(parts.recorder.progress, ProgressUnit.MEASUREMENTS),
        )
    profile = profiler.profile(subject)
    write(path, profile)
    log.info("profile", path=str(path), decode_points=len(profile.decode), tp_sizes=list(profile.tp_sizes))
    report(profile, spec, parts.recorder)
    return True


def scope_of(spec: RLJobSpec, config: dict[str, Any], tp_sizes: Sequence[int]) -> Scope:
    """Return what to measure for a job. Sizes that its engines never take are measured only if it does nothing else."""
    engine, text = spec.rollout.engine, config.get("text_config", config)
    is_wanted = spec.profiling is Profiling.ONLY or engine.parallelism is Parallelism.ADAPTIVE
    return Scope(
        max_num_seqs=engine.max_num_seqs,
        max_context_tokens=spec.model.max_context_tokens,
        vocab_size=text["vocab_size"],
        trainer=TrainerLimits(
            gpus_per_replica=spec.trainer.ranks_per_replica,
            max_tokens_per_micro_batch=spec.trainer.max_tokens_per_micro_batch or DEFAULT_MICRO_BATCH_TOKENS,
            lengths=default_lengths(spec),
            takes_turns=spec.placement is Placement.COLOCATED,
        ),
        other_tp_sizes=[size for size in tp_sizes if is_wanted and size != engine.tensor_parallel_size],
        seed=spec.algorithm.seed,
    )


def read_fitting(path: Path, subject: Subject, notify: Callable[[str, str], None]) -> Profile | None:
    """Return the earlier profile; if it does not apply, report that and return None."""
    if not path.is_file():
        return None
    try:
        profile = Profile.model_validate_json(path.read_bytes())
        require_fit(profile, subject)
    except (ValidationError, ProfileMismatch) as error:
        reason = str(error).splitlines()[0]
        log.warning("measuring again", reason=reason)
        notify(NoticeReason.PROFILE_MISMATCH, f"{path.name} is measured again: {reason}")
        return None
    log.info("the profile of an earlier attempt is used", path=str(path))
    return profile


def stored_profile(output_dir: Path) -> Profile:
    """Return the profile of a job that has one."""
    return Profile.model_validate_json((output_dir / FILE).read_bytes())


def require_fit(profile: Profile, subject: Subject) -> None:
    """Raise ProfileMismatch unless a profile was measured on this model and accelerator, with these options."""
    if profile.subject is None:
        raise ProfileMismatch("the profile does not say what it was measured with")
    profile.subject.require(subject)
    if profile.subject.setup != subject.setup:
        raise ProfileMismatch("the options for engines, trainers or pods have changed since the profile was measured")


def write(path: Path, profile: Profile) -> None:
    """Write the profile as a whole, or not at all."""
    write_whole(path, (profile.model_dump_json(by_alias=True, exclude_none=True, indent=2) + "\n").encode())
    sync(path.parent)


def report(profile: Profile, spec: RLJobSpec, recorder: Recorder) -> None:
    """Report what the planner uses, in the status of the job and in the log."""
    figures = rollout_profile(profile, spec)
    if figures is None:
        log.warning("the profile lacks decode steps of the engines: nothing is predicted from it")
        return
    recorder.rollout_times(
        RolloutTimes(
            switch_s=round(figures.switch_s, 4),
            preemption_s=round(figures.preemption_s, 6),
            round_s={kind: {size: round(s, 4) for size, s in of.items()} for kind, of in figures.round_s.items()},
            preemptions={
                kind: {size: round(count, 2) for size, count in of.items()}
                for kind, of in figures.num_preemptions.items()
            },
        )
    )
    log.info(
        "rollout profile",
        switch_s=round(figures.switch_s, 2),
        preemption_s=round(figures.preemption_s, 4),
        **{
            f"{kind.lower()}_round_s": {size: round(seconds, 2) for size, seconds in by_size.items()}
            for kind, by_size in figures.round_s.items()
        },
    )
