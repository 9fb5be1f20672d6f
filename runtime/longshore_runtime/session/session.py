"""One session of a job: start its parts, run the loop, and end them all."""

import queue
from pathlib import Path

from prometheus_client import CollectorRegistry

from longshore.api.reasons import NoticeReason
from longshore.api.runtime_status import RuntimeActivity, RuntimeStatus
from longshore.api.spec import Profiling, RLJobSpec
from longshore.sim.gate_prior import gate_prior
from longshore_runtime.checkpoints.store import CheckpointStore
from longshore_runtime.elastic.job_watch import Assignments
from longshore_runtime.errors import CannotContinue, UserError
from longshore_runtime.job_rewards import judge_processes
from longshore_runtime.process.durable import is_volume_full, no_room
from longshore_runtime.process.large_imports import collect_rarely
from longshore_runtime.profiling.phase import profiled, stored_profile
from longshore_runtime.rollout.events import Event
from longshore_runtime.session.ending import Ending
from longshore_runtime.session.output_owner import OutputOwner
from longshore_runtime.session.parts_builder import PartsBuilder
from longshore_runtime.settings import Settings
from longshore_runtime.step.loop import TrainingLoop
from longshore_runtime.step.parts import LoopOptions, Parts
from longshore_runtime.stop import Stop
from longshore_runtime.storage import job_storage
from longshore_runtime.telemetry.journal import Journal
from longshore_runtime.telemetry.metrics import MetricsWriter
from longshore_runtime.telemetry.recorder import Recorder
from longshore_runtime.telemetry.status_fields import resumed_status
from longshore_runtime.telemetry.status_reporter import StatusSink
from longshore_runtime.telemetry.tracker import TrackedRun
from longshore_runtime.telemetry.trackers import trackers


def mistake_of(error: BaseException, storage: Path) -> str | None:
    """Return the sentence about a mistake that a retry cannot fix, or about a full volume; otherwise None."""
    if isinstance(error, UserError):
        return str(error)
    if is_volume_full(error, storage):
        return no_room(Path(str(getattr(error, "filename", None) or storage)))
    return None


class Session:
    """A session as a context manager: leaving it ends every actor that it started."""

    def __init__(
        self,
        settings: Settings,
        spec: RLJobSpec,
        registry: CollectorRegistry,
        sink: StatusSink,
        first: RuntimeStatus,
        events: "queue.SimpleQueue[Event]",
        assignments: Assignments,
        stop: Stop | None = None,
    ) -> None:
        """Prepare the session; `stop` says whether the pod was asked to stop.

        Raises:
            UserError: the job has checkpoints, and none can be read.
        """
        self._spec = spec
        self._attempt = settings.attempt
        self._volume = settings.storage
        self._stop = stop or Stop()
        self._ending = Ending(self._stop)
        self._ending.reports.callback(assignments.close)
        self._storage = job_storage(settings, spec.storage.output)
        output = self._storage.output_dir
        owner = OutputOwner.of(settings)
        checkpoints = CheckpointStore(output / "checkpoints", spec.checkpoint.keep, lambda: owner.require_own(output))
        self._ending.reports.callback(checkpoints.close)
        damaged: list[str] = []
        newest = checkpoints.newest_whole(damaged.append)
        status = resumed_status(first, newest)
        self.resumes = newest is not None
        """Whether there is a checkpoint to go on from."""
        self._succeeded: bool | None = None
        """Whether the job succeeded; None: it may continue."""
        run = TrackedRun.of(spec.tracking, settings.job, settings.job_uid, output, spec)
        self._trackers = trackers(spec.tracking, run, self._tracker_failed)
        self._ending.reports.callback(self._close_trackers)
        metrics = MetricsWriter(output, registry, self._trackers, tensor_board=spec.tracking.tensor_board)
        self._ending.reports.callback(metrics.close)
        ledger = Journal(output / "ledger.jsonl")
        self._recorder = Recorder(metrics, ledger, sink, status, num_gpus=spec.num_gpus)
        for sentence in damaged:
            self._recorder.notice(NoticeReason.CHECKPOINT_DAMAGED, sentence)
        self._builder = PartsBuilder(
            spec, settings, self._storage, checkpoints, self._recorder, events, assignments, self._stop, self._ending
        )
        self._loop: TrainingLoop | None = None

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, kind: object, error: BaseException | None, *_: object) -> None:
        if self._loop is not None:
            self._loop.finish_save_if_possible(timeout_s=self._stop.save_limit_s)
        # Reported before pods end, so that the operator does not mistake their end for a restart.
        if error is not None and mistake_of(error, self._volume) is not None:
            self._succeeded = None if isinstance(error, CannotContinue) else False
            self._recorder.activity(RuntimeActivity.FAILING)
        for tracker in self._trackers:
            tracker.end(self._succeeded)
        self._ending.close()

    def run(self, parts: Parts) -> bool:
        """Train to the end, or measure first if the job asks for it; return whether the job is done.

        Measuring changes the weights: a job that goes on does so in another session.
        """
        spec, prior = self.spec, None
        if spec.profiling is not Profiling.OFF:
            is_only = spec.profiling is Profiling.ONLY
            judge, *_ = judge_processes(spec.reward, spec.workers)
            if profiled(spec, parts, self._storage.resolve(self._builder.model), judge) or is_only:
                return is_only
            prior = gate_prior(stored_profile(self._storage.output_dir), spec.trainer.ranks_per_replica)
        options = LoopOptions.of(spec, self._attempt)
        self._loop = TrainingLoop(options, parts, prior)
        collect_rarely()
        self._loop.run()
        self._succeeded = True
        return True

    def build(self) -> Parts:
        """Start everything on the pods of the job; raises UserError for what cannot start."""
        return self._builder.build()

    @property
    def spec(self) -> RLJobSpec:
        """The job; once its parts are built, with what it leaves open."""
        return self._builder.spec

    @property
    def made_progress(self) -> bool:
        """Whether a step was trained in this session, supervised ones included."""
        return self._builder.num_warm_start_steps > 0 or (self._loop is not None and self._loop.num_steps > 0)

    @property
    def status(self) -> RuntimeStatus:
        """Status that the session has reported last."""
        return self._recorder.status

    def save_if_possible(self) -> None:
        """Checkpoint the last finished step before the pod stops."""
        if self._loop is not None:
            self._loop.save_if_possible(timeout_s=self._stop.save_limit_s)

    def _close_trackers(self) -> None:
        for tracker in self._trackers:
            tracker.close(self._succeeded, self._ending.left_s())

    def _tracker_failed(self, reason: str) -> None:
        self._recorder.notice(NoticeReason.TRACKER_FAILED, reason)
