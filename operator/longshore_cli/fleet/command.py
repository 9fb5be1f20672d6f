"""`longshore top` and `longshore queue`."""

from typing import TYPE_CHECKING

import typer

from longshore_cli import options
from longshore_client.target import Target

if TYPE_CHECKING:
    from longshore_kube.resources import Json


def top(
    all_namespaces: options.AllNamespaces = False,
    namespace: options.Namespace = None,
    kubeconfig: options.Kubeconfig = None,
    context: options.Context = None,
) -> None:
    """Show all jobs: phase, place in the queue, steps per hour, GPUs by role, and the share in which engines idle."""
    from longshore_cli.fleet import rows

    jobs = _jobs(Target(kubeconfig, context, namespace), all_namespaces=all_namespaces)
    if not jobs:
        typer.echo("There are no RLJobs.")
        return
    typer.echo(rows.aligned(rows.JOB_HEADER, rows.job_rows(jobs)))
    if all_namespaces:
        typer.echo()
        typer.echo(rows.aligned(rows.NAMESPACE_HEADER, rows.namespace_rows(jobs)))


def queue(
    all_namespaces: options.AllNamespaces = False,
    namespace: options.Namespace = None,
    kubeconfig: options.Kubeconfig = None,
    context: options.Context = None,
) -> None:
    """Show the jobs that wait for GPUs, in their order, and why."""
    from datetime import UTC, datetime

    from longshore_cli.fleet import rows

    jobs = _jobs(Target(kubeconfig, context, namespace), all_namespaces=all_namespaces)
    waiting = rows.queue_rows(jobs, datetime.now(UTC))
    typer.echo(rows.aligned(rows.QUEUE_HEADER, waiting) if waiting else "No RLJob waits for GPUs.")


def _jobs(target: Target, *, all_namespaces: bool) -> "list[Json]":
    kube = target.connect()
    return kube.jobs(None if all_namespaces else kube.namespace)
