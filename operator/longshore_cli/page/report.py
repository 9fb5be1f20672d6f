"""Has the page of a job written as a file, by a helper pod that mounts the job's storage."""

import json
from pathlib import Path
from typing import Final

from longshore.api import contract
from longshore_cli.errors import CliError
from longshore_cli.page.cluster import cluster_view, read_events
from longshore_client import jobs
from longshore_client.kube import Kube
from longshore_client.transfer import copy
from longshore_client.view import job_view
from longshore_kube.resources import Json

_START: Final = b"<!doctype html>"


def write_report(kube: Kube, name: str, destination: Path, image: str | None) -> int:
    """Write the page of a job into a file and return its bytes; raises as `report_of`, without writing a file."""
    html = report_of(kube, name, image)
    destination.write_bytes(html)
    return len(html)


def report_of(kube: Kube, name: str, image: str | None = None) -> bytes:
    """Return the page of a job as an HTML document that needs no server.

    Raises:
        ClientError: no report could be made; in one sentence.
    """
    claim = jobs.claim_of(kube, name, image)
    job = claim.job
    assert job is not None, "it is the claim of a job"
    command = ["python", "-m", "longshore_runtime", "report", contract.STORAGE_MOUNT, jobs.output_path(job)]
    request = request_line(job, read_events(kube, job["metadata"]["uid"]))
    html = copy.ask(kube, claim, command, request, "report")
    if not html.startswith(_START):
        raise CliError("The helper pod answers with what is no page.", "Use the runtime image of the job as --image.")
    return html


def request_line(job: Json, events: list[Json] | None) -> bytes:
    """Return the input of the helper pod, as `longshore_runtime.page.report` reads it."""
    runtime = job_view(job).status.runtime
    request = {
        "name": job["metadata"]["name"],
        "namespace": job["metadata"]["namespace"],
        "spec": job["spec"],
        "runtime": runtime and runtime.model_dump(mode="json"),
        "cluster": cluster_view(job, events).model_dump(mode="json"),
    }
    return json.dumps(request).encode() + b"\n"
