"""A job as a Python program sees it: submit it, watch it, read its metrics and samples, take its model away."""

import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from pydantic import ValidationError

from longshore.api import names
from longshore.api.mistakes import sentence
from longshore.api.names import Component
from longshore.api.rljob import RLJob
from longshore.api.spec import RLJobSpec
from longshore.api.status import Phase, RLJobStatus
from longshore_client import frames, jobs, outputs
from longshore_client.errors import ClientError
from longshore_client.explained import explained
from longshore_client.kube import Kube, replaced
from longshore_client.modules import read_modules, submit_with, with_modules
from longshore_client.target import Target
from longshore_client.transfer import copy
from longshore_client.view import EventView, JobView, event_view, job_view, newest_events, steps_text, verdict
from longshore_kube.resources import EVENTS, Json

if TYPE_CHECKING:
    import pandas

_SAMPLES: Final = re.compile(r"step-(\d{6,12})\.parquet", re.ASCII)
_MAX_EVENTS: Final = 1_000
HERE: Final = Target()
"""The cluster and namespace that kubectl would choose, or the embedded cluster of this directory."""

JobLike = RLJob | Mapping[str, Any] | str | Path
"""An RLJob, the same as a mapping, or the YAML file that has it."""


class JobFailed(ClientError):
    """The job that was waited for has failed; the message is the one of its condition."""


class JobTimeout(ClientError, TimeoutError):
    """The job that was waited for is not finished in time."""


class Job:
    """An RLJob of a cluster, as the API server had it last; `refresh` reads it again."""

    def __init__(self, kube: Kube, stored: Json, image: str | None = None) -> None:
        """Take the `image` of helper pods for where neither the job nor the installed operator names one."""
        self._kube = kube
        self._stored = stored
        self._image = image

    def __repr__(self) -> str:
        runtime = self._view.runtime
        reward = "" if runtime.reward is None else f", reward {runtime.reward:.3g}"
        return f"<RLJob {self.name}: {self.phase}, step {steps_text(runtime.step, self._view.steps)}{reward}>"

    @property
    def name(self) -> str:
        """Name of the job."""
        return str(self._stored["metadata"]["name"])

    @property
    def namespace(self) -> str:
        """Namespace of the job."""
        return self._kube.namespace

    @property
    def spec(self) -> RLJobSpec:
        """The spec with every default; fields of newer versions are left out."""
        return RLJobSpec.model_validate(self._stored["spec"], extra="ignore")

    @property
    def status(self) -> RLJobStatus:
        """Status of the job; fields of newer versions are left out."""
        return self._view.status

    @property
    def phase(self) -> Phase:
        """Phase of the job, in one word."""
        return self._view.phase

    @property
    def is_finished(self) -> bool:
        """Succeeded or failed."""
        return self._view.is_finished

    @explained()
    def refresh(self) -> Self:
        """Read the job again.

        Raises:
            ClientError: it was deleted, even if another one has its name now.
        """
        stored = self._kube.job(self.name)
        if stored["metadata"]["uid"] != self._view.uid:
            raise replaced(self.name)
        self._stored = stored
        return self

    def watch(self, timeout_s: float | None = None) -> Iterator[RLJobStatus]:
        """Yield the status now and after every change, until the job is finished or `timeout_s` is over.

        Raises:
            ClientError: the job was deleted.
        """
        changes = self._kube.watch(
            self._kube.jobs_path(), f"metadata.name={self.name}", known=[self._stored], timeout_s=timeout_s
        )
        with explained():
            for kind, item in changes:
                if kind == "DELETED":
                    raise ClientError(f"The RLJob {self.name!r} was deleted.")
                self._stored = item
                yield self.status
                if self.is_finished:
                    return

    def wait(self, timeout_s: float | None = None) -> Self:
        """Wait until the job has succeeded.

        Raises:
            JobFailed: it has failed, and why.
            JobTimeout: it is not finished after `timeout_s`.
        """
        for _ in self.watch(timeout_s):
            continue
        if not self.is_finished:
            raise JobTimeout(f"The RLJob {self.name!r} is still {self.phase} after {timeout_s:g} s.")
        if self.phase is Phase.FAILED:
            raise JobFailed(f"The RLJob {self.name!r} failed: {verdict(self._view)}")
        return self

    @explained()
    def events(self) -> tuple[EventView, ...]:
        """Return the Kubernetes events about the job, the oldest first."""
        found = self._kube.items(EVENTS.path(self.namespace), fields=f"involvedObject.uid={self._view.uid}")
        return newest_events(map(event_view, found), _MAX_EVENTS)

    def logs(self, component: Component | str = Component.COORDINATOR, index: int = 0, *, follow: bool = False,
             tail: int | None = None) -> Iterator[str]:  # fmt: skip
        """Yield lines of the log of a pod.

        Raises:
            ClientError: there is no such component, no such pod, or it has not started.
        """
        if component not in list(Component):
            raise ClientError(f"logs: {component!r} is no component; choose one of {', '.join(Component)}.")
        pod = jobs.pod_name(self.name, Component(component), index)
        with explained():
            yield from jobs.pod_log(self._kube, pod, follow=follow, tail_lines=tail)

    @explained()
    def metrics(self) -> "pandas.DataFrame":
        """Return a row for each step, by its number, and a column for each metric (`docs/reference/metrics.md`).

        Step 0 is the evaluation before training.
        """
        with tempfile.TemporaryDirectory() as folder:
            return frames.metrics_frame(self._copied("metrics.jsonl", Path(folder)))

    @explained()
    def samples(self, step: int | None = None, *, held_out: bool = False) -> "pandas.DataFrame":
        """Return a row for each response that the job kept of a step; unset: of the newest step that has some.

        `held_out`: those to held-out prompts, sampled by the weights after the step, instead of those of the training.

        Raises:
            ClientError: the job has kept none of that step.
        """
        directory = "held-out" if held_out else "samples"
        step = self._newest_samples(directory) if step is None else step
        with tempfile.TemporaryDirectory() as folder:
            return frames.samples_frame(self._copied(f"{directory}/step-{step:06d}.parquet", Path(folder)))

    @explained()
    def fetch(self, destination: str | Path | None = None, *, checkpoint: int | None = None, path: str | None = None,
              force: bool = False) -> Path:  # fmt: skip
        """Copy the final model, or the newest checkpoint, to this machine, checked by SHA-256.

        `destination`: unset, a directory named after the job. `checkpoint`: of this step instead. `path`: anything else
        in the storage of the job instead. `force`: overwrite what is at the destination.
        """
        wanted = outputs.source_path(self.refresh()._stored, checkpoint, path)
        return self._copy(wanted, Path(destination or self.name), force=force)

    @explained()
    def suspend(self) -> Self:
        """Stop the pods of the job; its state is kept."""
        jobs.set_suspended(self._kube, self.name, self._view.uid, suspended=True)
        return self.refresh()

    @explained()
    def resume(self) -> Self:
        """Go on from the newest checkpoint."""
        jobs.set_suspended(self._kube, self.name, self._view.uid, suspended=False)
        return self.refresh()

    @explained()
    def delete(self) -> None:
        """Delete the job, and wait until it and its pods are gone. A claim that it does not own stays."""
        jobs.delete(self._kube, self.name, self._view.uid)

    @property
    def _view(self) -> JobView:
        return job_view(self._stored)

    def _claim(self) -> copy.StorageClaim:
        return jobs.claim_of(self._kube, self.name, self._image)

    def _copied(self, output: str, folder: Path) -> Path:
        """Return a file of the job's output directory, copied into a folder."""
        return self._copy(f"{jobs.output_path(self._stored)}/{output}", folder / Path(output).name, force=False)

    def _copy(self, path: str, destination: Path, *, force: bool) -> Path:
        copy.fetch(self._kube, self._claim(), path, destination, force=force)
        return destination

    def _newest_samples(self, directory: str) -> int:
        there = copy.listing(self._kube, self._claim(), f"{jobs.output_path(self._stored)}/{directory}")
        steps = [int(match[1]) for name in there if (match := _SAMPLES.fullmatch(name))]
        if not steps:
            raise ClientError(f"The RLJob {self.name!r} has kept no samples.")
        return max(steps)


@explained()
def submit(job: JobLike, *, modules: Sequence[str | Path] = (), target: Target = HERE, image: str | None = None) -> Job:
    """Apply a job, with everything else that its file holds.

    `modules`: Python files with functions of the job. `target`: which cluster and namespace; unset: as kubectl would
    choose. `image`: of helper pods; unset: the runtime image of the job.

    Raises:
        ClientError: the file holds not one RLJob, something in it cannot be used, or the API server refuses it or
            cannot be reached; or the job has ended before, and so does not run again.
    """
    documents, config_map = _documents(job), None
    found = jobs.jobs_in(documents)
    if len(found) != 1:
        raise ClientError(f"{job} holds {len(found)} RLJobs; submit one at a time.")
    if modules:
        documents, config_map = with_modules(documents, read_modules([Path(module) for module in modules]))
    jobs.require_namespace(documents, target.namespace)
    kube = target.connect()
    jobs.require_new_run(list(submit_with(kube, documents, config_map) if config_map else jobs.submit(kube, documents)))
    there = kube.within(found[0])
    return Job(there, there.job(found[0]["metadata"]["name"]), image)


@explained()
def get(name: str, *, target: Target = HERE, image: str | None = None) -> Job:
    """Return the job of that name.

    Raises:
        ClientError: there is none.
    """
    kube = target.connect()
    return Job(kube, kube.job(name), image)


@explained()
def list_jobs(*, target: Target = HERE) -> list[Job]:
    """Return all jobs of the namespace, by name."""
    kube = target.connect()
    return [Job(kube, one) for one in sorted(kube.items(kube.jobs_path()), key=lambda one: one["metadata"]["name"])]


def watch(job: Job | str, *, timeout_s: float | None = None, target: Target = HERE) -> Iterator[RLJobStatus]:
    """Return the status of a job now and after every change, until it is finished or `timeout_s` is over."""
    return (get(job, target=target) if isinstance(job, str) else job).watch(timeout_s)


def fetch(job: Job | str, destination: str | Path | None = None, *, checkpoint: int | None = None,
          path: str | None = None, force: bool = False, target: Target = HERE) -> Path:  # fmt: skip
    """Copy the final model of a job, or its newest checkpoint, to this machine; as `Job.fetch`."""
    found = get(job, target=target) if isinstance(job, str) else job
    return found.fetch(destination, checkpoint=checkpoint, path=path, force=force)


def _documents(job: JobLike) -> list[Json]:
    match job:
        case RLJob():
            if job.name is None:
                raise ClientError("metadata.name is required.", "Give the job a name: RLJob(metadata={'name': …}, …).")
            stored = job.model_dump(mode="json", exclude_unset=True, exclude={"status"})
            return [{"apiVersion": names.API_VERSION, "kind": names.KIND, **stored}]
        case Mapping():
            try:
                return _documents(RLJob.model_validate(job))
            except ValidationError as error:
                raise ClientError(f"{sentence(error)}.") from error
        case _:
            return jobs.read_manifest(Path(job))
