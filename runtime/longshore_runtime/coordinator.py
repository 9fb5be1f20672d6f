"""The coordinator pod: Ray head and driver. Starts everything, runs the loop, and exits with a code of the contract."""

import contextlib
import queue
import signal
from collections.abc import Iterator
from typing import Final

import structlog
from prometheus_client import CollectorRegistry
from pydantic import ValidationError

from longshore.api.contract import ExitCode
from longshore.api.mistakes import sentence
from longshore.api.runtime_status import RuntimeActivity, RuntimeStatus
from longshore.api.spec import RLJobSpec
from longshore.api.status import Assignment
from longshore.page.build import job_head
from longshore_kube.access import Access, load
from longshore_runtime.cluster.health import HealthServer
from longshore_runtime.cluster.node_starter import NodeStarter
from longshore_runtime.cluster.ray_driver import ray_driver
from longshore_runtime.cluster.ray_node import start_head
from longshore_runtime.cluster.served import Served
from longshore_runtime.elastic.job_watch import JobWatch
from longshore_runtime.errors import (
    ASKED_TO_STOP,
    CannotContinue,
    Interrupted,
    JobUnknown,
    SizeChanged,
    TrainerLost,
    UserError,
)
from longshore_runtime.page.files import JobFiles
from longshore_runtime.page.server import JobPage, LatestStatus, page_hosts, page_server
from longshore_runtime.process.logs import configure_logging
from longshore_runtime.rollout.events import Event, StopRequested
from longshore_runtime.session.output_owner import OutputOwner
from longshore_runtime.session.session import Session, mistake_of
from longshore_runtime.settings import Settings
from longshore_runtime.stop import Stop
from longshore_runtime.storage import JobStorage, job_storage
from longshore_runtime.telemetry.status_fields import next_session
from longshore_runtime.telemetry.status_reporter import StatusReporter, StatusSink

log = structlog.get_logger()

_CRASHED: Final = 1
_MAX_FRUITLESS_SESSIONS: Final = 3
_FIRST_SIZE_LIMIT_S: Final = 600.0
"""Seconds to wait for the first size, without which an elastic job cannot begin."""
_NEWER_SIZE_LIMIT_S: Final = 30.0
"""Seconds that a job which knows a size waits for a newer one, which it otherwise takes at the end of a step."""


def run_coordinator(starter: NodeStarter) -> int:
    """Run the main program of the coordinator pod, whose Ray head `starter` starts; return its exit code."""
    settings = Settings.from_env()
    stop = Stop(settings.grace_s)
    try:
        _train(settings, starter, stop)
    except (Interrupted, KeyboardInterrupt) as interruption:
        reason = str(interruption) or ASKED_TO_STOP
        log.info("interrupted", reason=reason)
        settings.report_reason(reason)
        return ExitCode.INTERRUPTED
    except Exception as error:
        if stop.is_asked:  # Its other pods end at the same time, and an import makes an ImportError of an interrupt.
            log.warning("interrupted", reason=ASKED_TO_STOP, exc_info=True)
            settings.report_reason(ASKED_TO_STOP)
            return ExitCode.INTERRUPTED
        if (mistake := mistake_of(error, settings.storage)) is not None:
            log.error("the job cannot run", reason=mistake)
            settings.report_reason(mistake)
            return ExitCode.CANNOT_CONTINUE if isinstance(error, CannotContinue) else ExitCode.USER_ERROR
        log.exception("the coordinator crashed")
        settings.report_reason(_in_one_line(error))
        return _CRASHED
    settings.report_reason("training is complete")
    return ExitCode.SUCCEEDED


def _in_one_line(error: Exception) -> str:
    """Return the error in one line: Ray's errors give the trace of the remote process first, and the exception last."""
    lines = str(error).strip().splitlines() or ["no message"]
    last = lines[-1].strip()
    return last if len(lines) > 1 else f"{type(error).__name__}: {last}"


def _train(settings: Settings, starter: NodeStarter, stop: Stop) -> None:
    spec = _read_spec(settings)
    storage = job_storage(settings, spec.storage.output)
    storage.require_writable()
    OutputOwner.of(settings).take(storage.output_dir)
    configure_logging(copy_to=storage.output_dir / "logs" / f"coordinator-{settings.attempt}.log")
    signals = _StopSignal(stop)
    registry = CollectorRegistry()
    access = load()
    sink = LatestStatus(StatusReporter(access, settings.namespace, settings.job, settings.job_uid))
    page = _page(settings, spec, storage, sink)
    with start_head(settings, starter), HealthServer(settings.pod_ip, registry) as health, page:
        health.ready()
        with ray_driver(settings.ray_address, settings.pod_ip, log_to_driver=True):
            # Ray's native library has put a handler before it, which prints a stack.
            signals.install()
            first = RuntimeStatus(
                attempt=settings.attempt, steps=spec.algorithm.steps, activity=RuntimeActivity.WAIT_FOR_WORKERS
            )
            try:
                _until_done(settings, spec, registry, access, sink, first, signals)
            finally:
                sink.close()


def _page(settings: Settings, spec: RLJobSpec, storage: JobStorage, latest: LatestStatus) -> Served:
    job = job_head(spec, settings.job, settings.namespace)
    page = JobPage(job, JobFiles(storage.output_dir), lambda: latest.status, any_host=settings.is_page_open)
    return page_server(page, page_hosts(settings.pod_ip, is_open=settings.is_page_open))


def _until_done(
    settings: Settings,
    spec: RLJobSpec,
    registry: CollectorRegistry,
    access: Access,
    sink: StatusSink,
    first: RuntimeStatus,
    signals: "_StopSignal",
) -> None:
    """Run sessions until the job is done.

    After the loss of a trainer, or with another number of worker pods, a new one starts from the newest checkpoint.

    Raises:
        CannotContinue: something was not wrong when an earlier session trained.
    """
    num_fruitless, last, has_trained = 0, Assignment(), False
    while True:
        signals.stop.require_none()
        events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        watch = JobWatch(access, settings.namespace, settings.job, settings.job_uid, events)
        size = _asked(watch, last).size if spec.workers.is_elastic else None
        sized = spec.resized(size.workers) if size is not None else spec
        first = first.model_copy(update={"size": size})
        with Session(settings, sized, registry, sink, first, events, watch, signals.stop) as session:
            try:
                parts = session.build()
                with signals.sent_to(events):
                    if session.run(parts):
                        signals.ignore()  # Nothing is left to save, and a new attempt would have nothing to do.
                        return
            except SizeChanged as change:
                log.info("going on with other worker pods", before=sized.workers.replicas, now=change.num_workers)
            except TrainerLost as loss:
                num_fruitless = 0 if session.made_progress else num_fruitless + 1
                if num_fruitless == _MAX_FRUITLESS_SESSIONS:
                    raise
                log.warning("starting again from the newest checkpoint", reason=str(loss))
            except (Interrupted, CannotContinue):
                session.save_if_possible()
                raise
            except UserError as error:
                has_begun = settings.attempt > 1 or has_trained
                if not has_begun or session.made_progress or not session.resumes:
                    raise
                raise CannotContinue(str(error)) from error
        has_trained = has_trained or session.made_progress
        first = next_session(first, session.status)
        last = max(last, watch.newest(), key=lambda one: one.epoch)


def _asked(watch: JobWatch, last: Assignment) -> Assignment:
    """Return what is asked of the job, or what was asked last if the API server does not answer now."""
    limit_s = _NEWER_SIZE_LIMIT_S if last.epoch else _FIRST_SIZE_LIMIT_S
    newest = watch.first(limit_s)
    if max(newest.epoch, last.epoch) == 0:
        raise JobUnknown(
            f"the API server said nothing about this job for {limit_s:.0f} s, so the number of its worker pods is not "
            "known: let coordinators reach the API server (jobNetworkPolicies.apiServerPorts of the chart)"
        )
    return newest if newest.epoch else last


def _read_spec(settings: Settings) -> RLJobSpec:
    try:
        return RLJobSpec.model_validate_json(settings.config.read_bytes())
    except ValidationError as error:
        raise UserError(sentence(error, "spec")) from error


class _StopSignal:
    """SIGTERM while the loop runs becomes an event, so that it ends between two decisions; before, it interrupts."""

    def __init__(self, stop: Stop) -> None:
        """Take the signal; `stop` notes it as well, because the event may wait in a queue that nobody reads now."""
        self.stop = stop
        self._events: queue.SimpleQueue[Event] | None = None
        self._is_ignored = False
        self.install()

    def install(self) -> None:
        """Take the signal, also back from a library that has taken it."""
        signal.signal(signal.SIGTERM, self._on_signal)

    def ignore(self) -> None:
        """Ignore the signal from now on, so that the job can end by itself."""
        self._is_ignored = True

    @contextlib.contextmanager
    def sent_to(self, events: "queue.SimpleQueue[Event]") -> Iterator[None]:
        """Put an event into `events` for a SIGTERM within the block."""
        self._events = events
        try:
            yield
        finally:
            self._events = None

    def _on_signal(self, *_: object) -> None:
        # While it connects, Ray has a handler before this one, which would abort the process after three seconds.
        signal.alarm(0)
        if self.stop.is_asked or self._is_ignored:
            return  # A second one must not cut saving and cleaning up short.
        self.stop.ask()
        if self._events is None:
            raise KeyboardInterrupt  # The waits of Ray end with no other exception of a handler.
        self._events.put(StopRequested())
