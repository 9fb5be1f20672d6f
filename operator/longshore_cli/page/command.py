"""The commands and their options."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from longshore_cli import options
from longshore_client.target import Target

if TYPE_CHECKING:
    from longshore_cli.page.server import JobSource, LocalPage
    from longshore_client.kube import Kube


def ui(
    job: Annotated[str | None, typer.Argument(help="Name of the RLJob; unset: all jobs of the namespace.")] = None,
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port on this machine; 0: any that is free.")] = 0,
    opens: Annotated[bool, typer.Option("--browser/--no-browser", help="Open it in the browser.")] = True,
    all_namespaces: options.AllNamespaces = False,
    namespace: options.Namespace = None,
    kubeconfig: options.Kubeconfig = None,
    context: options.Context = None,
) -> None:
    """Show a job in the browser: curves, timeline of the rounds, samples, events; a finished job as a report.

    Without a job, the page lists all jobs and leads to the page of each.
    """
    import asyncio
    import webbrowser

    from longshore_cli.errors import CliError
    from longshore_cli.page.server import serve

    target = Target(kubeconfig, context, namespace)
    if job is not None and all_namespaces:
        raise CliError("A job is in one namespace.", "Leave out --all-namespaces, or the job.")
    page, shown = _fleet(target, everywhere=all_namespaces) if job is None else _one_job(target, job)

    def ready(address: str) -> None:
        typer.echo(f"{address} shows {shown} until you press Ctrl-C.")
        if opens:
            webbrowser.open(address)

    try:
        asyncio.run(serve(page, port, ready))
    except KeyboardInterrupt:
        return


def _one_job(target: Target, job: str) -> "tuple[LocalPage, str]":
    from longshore_cli.page.cluster import read_cluster
    from longshore_cli.page.server import LocalPage

    kube = target.connect()
    is_finished = read_cluster(kube, job).is_finished  # What prevents it is reported before a browser opens.
    return LocalPage(_job_source(target, kube, job)), f"the report of {job}" if is_finished else job


def _job_source(target: Target, kube: "Kube", job: str) -> "JobSource":
    from longshore.api import contract, names
    from longshore_cli.page.cluster import read_cluster
    from longshore_cli.page.forward import forward
    from longshore_cli.page.report import report_of
    from longshore_cli.page.server import JobSource

    tunnel = forward(target, kube.namespace, names.coordinator_pod(job), contract.PAGE_PORT)
    return JobSource(lambda: read_cluster(kube, job), tunnel, lambda: report_of(kube, job))


def _fleet(target: Target, *, everywhere: bool) -> "tuple[LocalPage, str]":
    import time

    from longshore_cli.page.fleet import JobFleet
    from longshore_cli.page.server import Fleet, LocalPage

    kube = target.connect()
    fleet = JobFleet(kube, None if everywhere else kube.namespace, time.time)
    fleet.view()  # What prevents it is reported before a browser opens.

    def source(namespace: str, job: str) -> "JobSource":
        return _job_source(target, kube.within({"metadata": {"namespace": namespace}}), job)

    return LocalPage(Fleet(fleet.view, source)), "all jobs"


def report(
    job: options.Job,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Where it goes; unset: JOB.html.")] = None,
    force: options.Force = False,
    image: options.Image = None,
    namespace: options.Namespace = None,
    kubeconfig: options.Kubeconfig = None,
    context: options.Context = None,
) -> None:
    """Write the page of a job, also of a finished one, into a file that needs no server."""
    from longshore_cli import format as fmt
    from longshore_cli.errors import CliError
    from longshore_cli.page.report import write_report

    destination = out or Path(f"{job}.html")
    if destination.exists() and not force:
        raise CliError(f"{destination} exists already.", "Choose another place, or overwrite it with --force.")
    num_bytes = write_report(Target(kubeconfig, context, namespace).connect(), job, destination, image)
    typer.echo(f"The page of {job} is in {destination} ({fmt.size(num_bytes)}). It holds prompts and responses.")
