"""The commands and their options."""

from pathlib import Path
from typing import Annotated

import typer

from longshore_cli import options
from longshore_cli.target import Target


def ui(
    job: options.Job,
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port on this machine; 0: any that is free.")] = 0,
    opens: Annotated[bool, typer.Option("--browser/--no-browser", help="Open it in the browser.")] = True,
    namespace: options.Namespace = None,
    kubeconfig: options.Kubeconfig = None,
    context: options.Context = None,
) -> None:
    """Show the page of a job in the browser: curves, timeline of the rounds, samples, events."""
    import asyncio
    import webbrowser

    from longshore.api import contract, names
    from longshore_cli.errors import CliError
    from longshore_cli.page.cluster import read_cluster
    from longshore_cli.page.forward import forward
    from longshore_cli.page.server import job_page, serve
    from longshore_cli.watch.model import job_view

    target = Target(kubeconfig, context, namespace)
    kube = target.connect()
    found = job_view(kube.job(job))
    if found.is_finished:
        raise CliError(f"The RLJob {job!r} {found.phase.lower()} already, and its coordinator has ended.",
                       f"Write its page into a file with `longshore report {job}`.")  # fmt: skip
    tunnel = forward(target, kube.namespace, names.coordinator_pod(job), contract.PAGE_PORT)

    def ready(address: str) -> None:
        typer.echo(f"{address} shows {job} until you press Ctrl-C.")
        if opens:
            webbrowser.open(address)

    try:
        asyncio.run(serve(job_page(lambda: read_cluster(kube, job), tunnel), port, ready))
    except KeyboardInterrupt:
        return


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
