"""The commands: each one connects, calls one module, and prints what came of it.

A command imports what it needs: the Kubernetes client alone costs more than all the help that there is.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from longshore.api.names import Component
from longshore_cli import consoles, options
from longshore_cli import format as fmt
from longshore_cli.check.command import check
from longshore_cli.convert.command import convert
from longshore_cli.errors import EXIT_FAILED, EXIT_INTERRUPTED, CliError
from longshore_cli.examples import examples
from longshore_cli.fleet.command import queue, top
from longshore_cli.installation import down, quickstart, up
from longshore_cli.page.command import report, ui
from longshore_cli.simulate.command import simulate
from longshore_cli.tasks import tasks
from longshore_client.errors import ClientError
from longshore_client.target import Target

if TYPE_CHECKING:
    from rich.progress import Progress

    from longshore_client.kube import Kube


class _Commands(TyperGroup):
    """Expected errors end with one sentence and the fix instead of a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            consoles.errors().print("Interrupted; what runs in the cluster runs on.")
            raise typer.Exit(EXIT_INTERRUPTED) from None
        except Exception as error:
            explained = _explained(error)
            if explained is None:
                raise
            _print_error(explained)
            raise typer.Exit(explained.exit_code if isinstance(explained, CliError) else EXIT_FAILED) from None


app = typer.Typer(
    name="longshore",
    cls=_Commands,
    help="Reinforcement learning of language models on Kubernetes.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


app.command()(up)
app.command()(down)


@app.command()
def submit(
    file: Annotated[Path, typer.Argument(help="YAML file with an RLJob, and what it needs.")],
    wait: Annotated[bool, typer.Option("--wait", help="Watch the job until it is finished.")] = False,
    modules: Annotated[
        list[Path] | None,
        typer.Option("--with", help="Python file with functions of the job; repeat it for several. 1 MiB together."),
    ] = None,
    namespace: options.Namespace = None,
    kubeconfig: options.Kubeconfig = None,
    context: options.Context = None,
) -> None:
    """Apply the objects of a file."""
    from longshore_client import jobs
    from longshore_client.modules import read_modules, submit_with, with_modules

    documents, config_map = jobs.read_manifest(file), None
    if modules:
        documents, config_map = with_modules(documents, read_modules(modules))
    jobs.require_namespace(documents, namespace)
    kube = Target(kubeconfig, context, namespace).connect()
    applied = []
    for one in submit_with(kube, documents, config_map) if config_map else jobs.submit(kube, documents):
        consoles.output().print(jobs.applied_text(one), soft_wrap=True)
        applied.append(one)
    jobs.require_new_run(applied)
    if wait:
        for job in jobs.jobs_in(documents):
            _watch(kube.within(job), job["metadata"]["name"])


@app.command()
def watch(
    job: options.Job,
    namespace: options.Namespace = None,
    kubeconfig: options.Kubeconfig = None,
    context: options.Context = None,
) -> None:
    """Show a job live until it is finished; the exit code is 0 when it succeeded."""
    _watch(Target(kubeconfig, context, namespace).connect(), job)


@app.command()
def logs(
    job: options.Job,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the pod ends.")] = False,
    component: Annotated[Component, typer.Option(help="Which pods.")] = Component.COORDINATOR,
    index: Annotated[int, typer.Option(help="Which worker, trainer, reward, judge or environment pod.")] = 0,
    tail: Annotated[int | None, typer.Option(help="Print only the last N lines.")] = None,
    namespace: options.Namespace = None,
    kubeconfig: options.Kubeconfig = None,
    context: options.Context = None,
) -> None:
    """Print the log of a pod of a job."""
    from longshore_client import jobs

    kube = Target(kubeconfig, context, namespace).connect()
    pod = jobs.pod_name(job, component, index)
    for line in jobs.pod_log(kube, pod, follow=follow, tail_lines=tail):
        typer.echo(line)


@app.command(name="fetch")
def fetch_model(
    job: options.Job,
    destination: Annotated[
        Path | None, typer.Argument(help="Where to; unset: a directory named after the job.")
    ] = None,
    checkpoint: Annotated[
        int | None, typer.Option(min=0, help="The checkpoint of this step instead of the newest model.")
    ] = None,
    path: Annotated[str | None, typer.Option(help="Any path in the storage of the job instead.")] = None,
    lists: Annotated[bool, typer.Option("--list", help="Only list the checkpoints that there are.")] = False,
    force: options.Force = False,
    image: options.Image = None,
    namespace: options.Namespace = None,
    kubeconfig: options.Kubeconfig = None,
    context: options.Context = None,
) -> None:
    """Copy the final model of a job, or its newest checkpoint, to this machine, checked by SHA-256."""
    from longshore_cli.fetch import checkpoint_lines
    from longshore_client import jobs, outputs
    from longshore_client.transfer import copy

    kube = Target(kubeconfig, context, namespace).connect()
    found = kube.job(job)
    claim = jobs.claim_of(kube, job, image)
    if lists:
        there = checkpoint_lines(copy.listing(kube, claim, outputs.checkpoints_path(found)))
        consoles.output().print(
            "\n".join(there) or f"The RLJob {job!r} has no checkpoint.", markup=False, soft_wrap=True
        )
        return
    wanted = outputs.source_path(found, checkpoint, path)
    destination = destination or Path(job)
    with _transfer_progress() as progress:
        task = progress.add_task(f"{job}:{wanted}", total=None)
        num_files = copy.fetch(
            kube, claim, wanted, destination, force=force,
            progress=lambda done, total: progress.update(task, completed=done, total=total),
        )  # fmt: skip
    summary = f"{wanted}: {fmt.count(num_files, 'file')} in {destination}, checksums verified."
    consoles.output().print(summary, markup=False, soft_wrap=True)


@app.command()
def put(
    job_or_claim: Annotated[str, typer.Argument(help="An RLJob, or else a PersistentVolumeClaim.")],
    source: Annotated[Path, typer.Argument(help="File or directory of this machine.")],
    destination: Annotated[str, typer.Argument(help="Path in the storage, as models/qwen.")],
    force: options.Force = False,
    image: options.Image = None,
    namespace: options.Namespace = None,
    kubeconfig: options.Kubeconfig = None,
    context: options.Context = None,
) -> None:
    """Copy a file or directory into the storage of a job, checked by SHA-256."""
    from longshore_client import jobs
    from longshore_client.transfer import copy

    kube = Target(kubeconfig, context, namespace).connect()
    is_job = kube.find_job(job_or_claim) is not None
    claim = jobs.claim_of(kube, job_or_claim, image) if is_job else jobs.claim_named(kube, job_or_claim, image)
    with _transfer_progress() as progress:
        task = progress.add_task(f"{claim.name}:{destination}", total=None)
        copy.put(
            kube, claim, source, destination, force=force,
            progress=lambda done, total: progress.update(task, completed=done, total=total),
        )  # fmt: skip
    consoles.output().print(f"{source} is {destination} in the claim {claim.name}, checksums verified.", soft_wrap=True)


@app.command()
def suspend(
    job: options.Job,
    namespace: options.Namespace = None,
    kubeconfig: options.Kubeconfig = None,
    context: options.Context = None,
) -> None:
    """Stop the pods of a job; its state is kept."""
    from longshore_client import jobs

    jobs.set_suspended(Target(kubeconfig, context, namespace).connect(), job, suspended=True)
    consoles.output().print(f"rljob/{job} is being suspended; continue with `longshore resume {job}`.")


@app.command()
def resume(
    job: options.Job,
    namespace: options.Namespace = None,
    kubeconfig: options.Kubeconfig = None,
    context: options.Context = None,
) -> None:
    """Go on with a suspended job from its newest checkpoint."""
    from longshore_client import jobs

    jobs.set_suspended(Target(kubeconfig, context, namespace).connect(), job, suspended=False)
    consoles.output().print(f"rljob/{job} is being resumed.")


app.command()(quickstart)


@app.command()
def profile(
    file: Annotated[Path, typer.Argument(help="YAML file with one RLJob, and what it needs.")],
    out: Annotated[Path, typer.Option(help="Where the figures go.")] = Path(options.PROFILE_FILE),
    keep: Annotated[bool, typer.Option("--keep", help="Do not remove the job that has measured.")] = False,
    force: options.Force = False,
    image: options.Image = None,
    namespace: options.Namespace = None,
    kubeconfig: options.Kubeconfig = None,
    context: options.Context = None,
) -> None:
    """Measure what a job's model costs on the cluster's GPUs, for `simulate --profile`."""
    from longshore_cli import profile as profiling

    plan = profiling.ProfilePlan(file, out, namespace, keep=keep, force=force, image=image)
    profiling.run(Target(kubeconfig, context, namespace).connect(), plan, consoles.output())


@app.command()
def trace(
    job: options.Job,
    rounds: Annotated[str | None, typer.Option(help="Rounds, as 3:7, 3:, :7 or 3; unset: the newest ten.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Where to; unset: JOB-trace.json.gz.")] = None,
    force: options.Force = False,
    image: options.Image = None,
    namespace: options.Namespace = None,
    kubeconfig: options.Kubeconfig = None,
    context: options.Context = None,
) -> None:
    """Write what GPUs and responses did in rounds of a job as a trace for Perfetto."""
    from longshore_cli import records
    from longshore_cli import trace as tracing

    wanted = records.Rounds(newest=tracing.NEWEST) if rounds is None else records.Rounds.parse(rounds)
    target = out or Path(f"{job}-trace.json.gz")
    tracing.check_target(target, force=force)
    found = records.fetch(Target(kubeconfig, context, namespace).connect(), job, wanted, image=image).records
    for line in tracing.summary(found, tracing.write(job, found, target), target):
        consoles.output().print(line, markup=False, soft_wrap=True)


app.command()(examples)
app.command()(ui)
app.command()(report)
app.command()(top)
app.command()(queue)
app.command()(simulate)
app.command()(check)
app.command()(tasks)
# Arguments of verl, as --config-name, are named among what is left out.
app.command(context_settings={"ignore_unknown_options": True})(convert)


@app.command()
def version() -> None:
    """Print the version."""
    from importlib.metadata import version as package_version

    typer.echo(f"longshore {package_version('longshore')}")


def _watch(kube: "Kube", job: str) -> None:
    from longshore.api.status import Phase
    from longshore_cli.watch import follow as watching
    from longshore_cli.watch import text

    console = consoles.output()
    view = watching.follow(kube, job, console).view
    succeeded = view.phase is Phase.SUCCEEDED
    console.print(text.ending_text(view), style="bold green" if succeeded else "bold red", markup=False, soft_wrap=True)
    if not succeeded:
        raise typer.Exit(EXIT_FAILED)


def _transfer_progress() -> "Progress":
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    return Progress(*columns, console=consoles.errors(), disable=not consoles.errors().is_terminal)


def _explained(error: Exception) -> ClientError | None:
    """Return an error that is expected as a ClientError with one sentence, or None for any other."""
    if isinstance(error, ClientError):
        return error
    from longshore_client.explained import explain
    from longshore_kube.errors import KubeError

    return explain(error) if isinstance(error, KubeError) else None


def _print_error(error: ClientError) -> None:
    consoles.errors().print("error:", style="bold red", end=" ")
    consoles.errors().print(error.message, markup=False, soft_wrap=True)
    if error.fix:
        consoles.errors().print(error.fix, style="dim", markup=False, soft_wrap=True)
