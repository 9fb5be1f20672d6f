"""The commands and their options."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from longshore_cli import options
from longshore_client.target import Target

if TYPE_CHECKING:
    from longshore_cli.page.server import LocalPage


def ui(
    job: Annotated[str | None, typer.Argument(help="Name of the RLJob; unset: all jobs of the namespace.")] = None,
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port on this machine; 0: any that is free.")] = 0,
    opens: Annotated[bool, typer.Option("--browser/--no-browser", help="Open it in the browser.")] = True,
    all_namespaces: options.AllNamespaces = False,
    namespace: options.Namespace = None,
    kubeconfig: options.Kubeconfig = None,
    context: options.Context = None,
) -> None:
    """Show a job in the browser: curves, timeline of the rounds, samples, events. Without a job: all jobs."""
    import asyncio
    import webbrowser

    from longshore_cli.errors import CliError
    from longshore_cli.page.server import serve

    target = Target(kubeconfig, context, namespace)
    if job is not None and all_namespaces:
        raise CliError("A job is in one namespace.", "Leave out --all-namespaces, or the job.")
    page, shown = (
        (_fleet(target, everywhere=all_namespaces), "all jobs") if job is None else (_one_job(target, job), job)
    )

    def ready(address: str) -> None:
        typer.echo(f"{address} shows {shown} until you press Ctrl-C.")
        if opens:
            webbrowser.open(address)

    try:
        asyncio.run(serve(page, port, ready))
    except KeyboardInterrupt:
        return


def _one_job(target: Target, job: str) -> "LocalPage":
    from longshore.api import contract, names
    from longshore_cli.errors import CliError
    from longshore_cli.page.cluster import read_cluster
    from longshore_cli.page.forward import forward
    from longshore_cli.page.server import job_page
    from longshore_client.view import job_view

    kube = target.connect()
    found = job_view(kube.job(job))
    if found.is_finished:
        raise CliError(f"The RLJob {job!r} {found.phase.lower()} already, and its coordinator has ended.",
                       f"Write its page into a file with `longshore report {job}`.")  # fmt: skip
    tunnel = forward(target, kube.namespace, names.coordinator_pod(job), contract.PAGE_PORT)
    return job_page(lambda: read_cluster(kube, job), tunnel)


def _fleet(target: Target, *, everywhere: bool) -> "LocalPage":
    import time

    from longshore_cli.page.fleet import JobFleet
    from longshore_cli.page.server import fleet_page

    kube = target.connect()
    fleet = JobFleet(kube, None if everywhere else kube.namespace, time.time)
    fleet.view()  # What is in the way is said before a browser opens.
    return fleet_page(fleet.view)


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
