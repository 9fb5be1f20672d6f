"""`python -m longshore_runtime report ROOT OUTPUT`: the page of a job as one file, from its storage.

Runs in a helper pod of `longshore report`, so that the version which wrote the storage also reads it. One line of JSON
on the standard input says what the API server knows of the job; the file goes to the standard output.
"""

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from longshore.api.mistakes import sentence
from longshore.api.runtime_status import RuntimeStatus
from longshore.api.spec import RLJobSpec
from longshore.page import document, samples
from longshore.page.build import job_head, job_view
from longshore.page.view import ClusterView, JobPageView, PageModel, RoundView, SampleGroup
from longshore_runtime.page.files import JobFiles, SampleKind

_NUM_ROUNDS: Final = 20
_MAX_STAYS: Final = 1000
"""Largest number of stays per timeline: twenty timelines then need at most a few megabytes."""
_NUM_SAMPLE_STEPS: Final = 8
_MAX_STEP_CHARACTERS: Final = 1_000_000


class ReportRequest(PageModel):
    """Facts about a job from the API server."""

    name: str
    namespace: str
    spec: RLJobSpec
    runtime: RuntimeStatus | None
    cluster: ClusterView


def report_view(request: ReportRequest, files: JobFiles, written_s: float) -> JobPageView:
    """Return the view of a job, with its last rounds and some samples included."""
    job = job_head(request.spec, request.name, request.namespace)
    rounds = dict(_rounds(files))
    found, held_out = (dict(_samples(files, kind)) for kind in (SampleKind.TRAINING, SampleKind.HELD_OUT))
    view = job_view(
        job,
        request.runtime,
        files.curves(),
        files.digests()[0],
        sorted(rounds),
        sorted(found),
        sorted(held_out),
        written_s,
    )
    inlined = {"cluster": request.cluster, "rounds": rounds, "samples": found, "held_out": held_out}
    return view.model_copy(update=inlined)


def chosen_steps(steps: list[int], num: int) -> list[int]:
    """Choose at most `num` steps: the newest ones, and the oldest for comparison."""
    return sorted({*steps[:1], *steps[-(num - 1) :]})


def _rounds(files: JobFiles) -> Iterator[tuple[int, RoundView]]:
    for step in files.round_steps()[-_NUM_ROUNDS:]:
        try:
            yield step, files.round(step, _MAX_STAYS)
        except (FileNotFoundError, ValueError):  # A digest reports what cannot be read.
            continue


def _samples(files: JobFiles, kind: SampleKind) -> Iterator[tuple[int, tuple[SampleGroup, ...]]]:
    for step in chosen_steps(files.sample_steps(kind), _NUM_SAMPLE_STEPS):
        try:
            kept = samples.within(files.groups(kind, step), _MAX_STEP_CHARACTERS)
        except (OSError, ValueError) as error:  # It is gone by now, or damaged.
            sys.stderr.write(f"samples of step {step} cannot be read: {error}\n")
            continue
        if kept:
            yield step, kept


def run_report(root: str, output: str) -> int:
    """Write the report; return the exit status."""
    directory = (Path(root) / output).resolve()
    if not directory.is_relative_to(Path(root).resolve()) or not directory.is_dir():
        sys.stderr.write(f"there is no {output!r} in the storage: the job has written nothing yet\n")
        return 1
    try:
        request = ReportRequest.model_validate_json(sys.stdin.readline())
    except ValidationError as error:
        sys.stderr.write(f"this image cannot read the job: {sentence(error, 'job')}\n")
        return 1
    sys.stdout.write(document.report(report_view(request, JobFiles(directory), time.time())))
    sys.stdout.flush()
    return 0
