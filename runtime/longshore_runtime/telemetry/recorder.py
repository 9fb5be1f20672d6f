"""Report what a run does: metrics and ledger on disk, milestones in RLJob.status.runtime."""

import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final

import structlog

from longshore.api.limits import MAX_MESSAGE_CHARACTERS, MAX_REPORTED
from longshore.api.round_status import RepurposingBenefit, RolloutLoad, RolloutTimes, RoundStatus, RoundSummary
from longshore.api.runtime_status import (
    ChosenFactors,
    DataTypes,
    JobSize,
    Notice,
    Progress,
    ProgressUnit,
    PromptCounts,
    ResponseTokens,
    RewardLoad,
    RuntimeActivity,
    RuntimeStatus,
    WarmStartReport,
)
from longshore.policy.progress import RoundProgress
from longshore.policy.reward_pods import RewardPressure, is_news
from longshore.policy.scale_down import CHECK_EVERY_SHARE, FIRST_SHARE
from longshore.policy.training_alarms import RaisedAlarm
from longshore_runtime.checkpoints.run_state import RunState
from longshore_runtime.checkpoints.store import Checkpoint
from longshore_runtime.clock import Clock, SystemClock
from longshore_runtime.rewards.surroundings import Surroundings, with_worker
from longshore_runtime.rollout.batch import RoundResult
from longshore_runtime.telemetry.journal import Journal
from longshore_runtime.telemetry.ledger import ledger_row
from longshore_runtime.telemetry.metrics import MetricsWriter
from longshore_runtime.telemetry.status_fields import draw_counts, held_out_reward, reported_alarms, state_fields
from longshore_runtime.telemetry.status_reporter import StatusSink
from longshore_runtime.telemetry.step_done import StepDone
from longshore_runtime.telemetry.step_metrics import lengths, repurposing_metrics, step_metrics

log = structlog.get_logger()

_NUM_MILESTONES: Final = round((1.0 - FIRST_SHARE) / CHECK_EVERY_SHARE)
_MILESTONES: Final = tuple(round(FIRST_SHARE + number * CHECK_EVERY_SHARE, 2) for number in range(_NUM_MILESTONES))
"""Fractions of a round at which its progress is reported: those of the scale-down decision (RollPacker, 4.4), and the
same distance on, for people who wait for the last responses."""


class Recorder:
    """The only writer of metrics, ledger and runtime status.

    The driver's thread calls it; any thread may call `notice` and `progress`.
    """

    def __init__(
        self,
        metrics: MetricsWriter,
        ledger: Journal,
        sink: StatusSink,
        first: RuntimeStatus,
        *,
        num_gpus: int = 1,
        clock: Clock | None = None,
    ) -> None:
        """Begin with the status `first`; `num_gpus`: GPUs of the job, by which throughput is divided."""
        self._num_gpus = num_gpus
        self._metrics = metrics
        self._ledger = ledger
        self._sink = sink
        self._status = first
        self._lock = threading.RLock()
        """Lock for `_status`, which several threads change."""
        self._clock = clock or SystemClock()
        self._since_s = self._clock.now_s()
        """Time at which the current activity began, in seconds."""
        self._reported_fraction = 0.0
        self._reward_pressure: RewardPressure | None = None

    def activity(self, activity: RuntimeActivity) -> None:
        """Report what the coordinator does now."""
        self._update(activity=activity, progress=None)

    def progress(self, unit: ProgressUnit, done: int, total: int, detail: str = "") -> None:
        """Report the progress of the activity; a `total` of 0 means that it is not known.

        Some totals are estimates. One that is exceeded was wrong, so it is not shown any more.
        """
        self._update(progress=Progress(unit=unit, done=done, total=total if done <= total else 0, detail=detail))

    def download(self, repository: str, num_bytes: int, total_bytes: int) -> None:
        """Report how much of a repository has been downloaded."""
        self.progress(ProgressUnit.BYTES, num_bytes, total_bytes, repository)

    def prompts(self, counts: PromptCounts) -> None:
        """Report how the prompts are used."""
        self._update(prompts=counts)

    def data_types(self, data_types: DataTypes) -> None:
        """Report the types in which engines and trainers compute."""
        self._update(data_types=data_types)

    def warm_start(self, warm_start: WarmStartReport) -> None:
        """Report the supervised steps so far."""
        self._update(warm_start=warm_start)

    def begin(self) -> None:
        """Begin a run without a checkpoint: discard what an earlier attempt has written."""
        self._metrics.rewind(0, 0)
        self._ledger.rewind(0)

    def resume(self, state: RunState, exported: Mapping[str, Any]) -> None:
        """Continue a run from a checkpoint."""
        self._metrics.rewind(state.step, exported["metrics"])
        self._ledger.rewind(exported["ledger"])
        self._update(**state_fields(state, state.policy, self._status.steps), checkpoint_step=state.step)

    def export(self) -> dict[str, int]:
        """Return the positions in metrics and ledger for a checkpoint, in bytes."""
        return {"metrics": self._metrics.journal.position, "ledger": self._ledger.position}

    def reward_pressure(self, pressure: RewardPressure) -> None:
        """Report how rewards keep up, if that has changed."""
        if not is_news(self._reward_pressure, pressure):
            return
        self._reward_pressure = pressure
        load = RewardLoad(
            queue_length=pressure.queue_length,
            oldest_wait_s=round(pressure.oldest_wait_s, 1),
            workers=pressure.num_workers,
            busy=pressure.num_busy,
        )
        self._update(rewards=load)

    def reward_worker(self, found: Surroundings) -> None:
        """Report a new reward worker."""
        self._update(reward_workers=with_worker(self._status.reward_workers, found))

    @property
    def size(self) -> JobSize | None:
        """Size that the job reports: the number of its worker pods."""
        return self._status.size

    def resized(self, size: JobSize) -> None:
        """Report the size that the job runs with."""
        self._update(size=size)

    @property
    def status(self) -> RuntimeStatus:
        """Status that was reported last."""
        return self._status

    def notice(self, reason: str, message: str) -> None:
        """Report a problem that did not end the attempt; called from any thread."""
        with self._lock:
            before = self._status.notices
            number = before[-1].number + 1 if before else 1
            newest = Notice(number=number, reason=reason, message=message[:MAX_MESSAGE_CHARACTERS])
            self._update(notices=[*before, newest][-MAX_REPORTED:])

    def alarms(self, raised: Sequence[RaisedAlarm]) -> None:
        """Report all alarms that hold at present."""
        self._update(alarms=reported_alarms(raised))

    def round_progress(self, state: RunState, progress: RoundProgress) -> None:
        """Report a round's start, and its progress at milestones only."""
        fraction = progress.fraction_finished
        if progress.num_finished == 0:
            self._reported_fraction = 0.0
        elif not any(self._reported_fraction < milestone <= fraction for milestone in _MILESTONES):
            return
        self._reported_fraction = fraction
        before, number = self._status.round, state.step + 1
        # A reported load stays until the next one, because the operator may not have read it yet.
        load = before.load if before is not None and before.number == number and progress.num_finished else None
        now = RoundStatus(number=number, kind=progress.kind, fraction_finished=round(fraction, 3), load=load)
        self._update(activity=RuntimeActivity.ROLLOUT, round=now, progress=None)

    def milestone(self, progress: RoundProgress, load: RolloutLoad, benefit: RepurposingBenefit | None = None) -> None:
        """Report load and expected benefit, from which the operator decides whether to repurpose pods."""
        running = self._status.round
        assert running is not None, "a round has begun"
        fraction = round(progress.fraction_finished, 3)
        known = {kind: one for kind, one in self._status.repurposing.items() if kind is not progress.kind}
        benefits = known | ({progress.kind: benefit} if benefit is not None else {})
        status = running.model_copy(update={"fraction_finished": fraction, "load": load})
        self._update(round=status, repurposing=benefits)

    def engines(self, tp_size: int) -> None:
        """Report the tensor-parallel size of the engines."""
        self._update(tp_size=tp_size)

    def possible_sizes(self, tp_sizes: Sequence[int]) -> None:
        """Report the tensor-parallel sizes that suit the model and the pods."""
        self._update(tp_sizes=list(tp_sizes))

    def rollout_times(self, times: RolloutTimes) -> None:
        """Report the times of tensor-parallel sizes from the job's profile."""
        self._update(rollout_times=times)

    def factors(self, chosen: ChosenFactors) -> None:
        """Report the factors that strategy Auto has chosen."""
        self._update(auto=chosen)

    def applied(self, epoch: int, trainer_pods: tuple[int, ...]) -> None:
        """Report that an assignment has been carried out."""
        self._update(applied_epoch=epoch, trainer_pods=list(trainer_pods))

    def rejected(self, epoch: int, reason: str, refused_tp_size: int = 0) -> None:
        """Report that an assignment was refused, possibly because engines do not start with this size."""
        log.warning("assignment rejected", epoch=epoch, reason=reason)
        self._update(rejected_epoch=epoch, rejected_reason=reason, refused_tp_size=refused_tp_size)

    def step(self, state: RunState, done: StepDone) -> None:
        """Report a finished step, after which every pod samples again."""
        result, trained, times, queue_length = done.result, done.trained, done.times, done.queue_length
        values = step_metrics(
            result, trained, times, queue_length, self._num_gpus, state.reward_range, done.shorter_again
        )
        values |= repurposing_metrics(done.repurposed)
        self._metrics.write(state.step, values)
        self._ledger.append(ledger_row(state.step, result, trained))
        length = lengths(trained.samples)
        self._update(
            **state_fields(state, {}, self._status.steps),
            draws=draw_counts(state, queue_length),
            round=RoundStatus(number=state.step, kind=result.end.kind, fraction_finished=1.0),
            recent_rounds=self._recent_rounds(state.step, result),
            trainer_pods=[],
            reward=round(values["critic/rewards/mean"], 4),
            response_tokens=ResponseTokens(mean=round(length.mean, 1), p75=length.p75, max=length.max),
            tokens_per_s=round(trained.num_tokens / times.step_s, 1),
            step_s=round(times.step_s, 2),
            bubble_share=round(1.0 - min(1.0, result.busy_share), 3),
        )
        log.info(
            "step",
            step=state.step,
            round=result.end.kind.value,
            reward=round(values["critic/rewards/mean"], 3),
            response_mean=round(length.mean, 1),
            response_max=length.max,
            gen_s=round(times.gen_s, 2),
            train_s=round(times.train_s, 2),
            step_s=round(times.step_s, 2),
            queue=queue_length,
            grad_norm=round(values["actor/grad_norm"], 3),
            mismatch=f"{values['rollout_corr/log_prob_mismatch_max']:.1e}",
        )

    def evaluation(self, state: RunState, testing_s: float) -> None:
        """Report an evaluation."""
        score = state.held_out_latest
        assert score is not None
        found = {
            "timing_s/testing": testing_s,
            "val/reward/mean": score.overall,
            "val/reward/longest_quartile": score.longest_quartile,
        }
        values = {name: value for name, value in found.items() if value is not None}
        self._metrics.write_evaluation(state.step, values)
        log.info("held-out reward", step=state.step, **{name: round(value, 3) for name, value in values.items()})
        self._update(held_out=held_out_reward(state))

    def checkpoint(self, checkpoint: Checkpoint) -> None:
        """Report a complete checkpoint."""
        log.info("checkpoint", step=checkpoint.step)
        self._update(checkpoint_step=checkpoint.step)

    def finished(self, final_model: str) -> None:
        """Report the end of the run."""
        log.info("finished", model=final_model)
        self._update(activity=RuntimeActivity.DONE, final_model=final_model, progress=None)

    def _recent_rounds(self, number: int, result: RoundResult) -> list[RoundSummary]:
        newest = RoundSummary(
            number=number,
            kind=result.end.kind,
            preemptions=result.num_preemptions,
            requests=result.num_launched,
        )
        return [*(one for one in self._status.recent_rounds if one.number < number), newest][-MAX_REPORTED:]

    def _update(self, **changes: Any) -> None:
        with self._lock:
            if changes.get("activity", self._status.activity) is not self._status.activity:
                changes["activity_s"] = self._spent_s()
            updated = self._status.model_copy(update=changes)
            if updated != self._status:
                self._status = updated
                self._sink.report(updated)

    def _spent_s(self) -> dict[RuntimeActivity, float]:
        """Return the seconds of all activities as the current one ends."""
        now_s, spent_s = self._clock.now_s(), self._status.activity_s
        began_s, self._since_s = self._since_s, now_s
        if (ended := self._status.activity) is None:
            return spent_s
        return {**spent_s, ended: round(spent_s.get(ended, 0.0) + now_s - began_s, 3)}
