"""The commands: each one connects, calls one module, and prints what came of it.

A command imports what it needs: the Kubernetes client alone costs more than all the help that there is.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from longshore.api.names import Component
from longshore_cli import format as fmt
from longshore_cli import options
from longshore_cli.check.command import check
from longshore_cli.errors import EXIT_FAILED, EXIT_INTERRUPTED, CliError
from longshore_cli.options import ClusterKind
from longshore_cli.page.command import report, ui
from longshore_cli.simulate.command import simulate
from longshore_cli.target import Target, kubeconfig_path

if TYPE_CHECKING:
    from rich.progress import Progress

    from longshore_cli.chart import ChartOptions
    from longshore_kube.resources import Json


class _Commands(TyperGroup):
    """Expected errors end with one sentence and the fix instead of a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            _errors().print("Interrupted; what runs in the cluster runs on.")
            raise typer.Exit(EXIT_INTERRUPTED) from None
        except Exception as error:
            told = _told(error)
            if told is None:
                raise
            _print_error(told)
            raise typer.Exit(told.exit_code) from None


app = typer.Typer(
    name="longshore",
    cls=_Commands,
    help="Reinforcement learning of language models on Kubernetes.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command()
def up(
    kind: options.Cluster = ClusterKind.EMBEDDED,
    operator_image: options.OperatorImage = None,
    runtime_image: options.RuntimeImage = None,
    values: options.Values = None,
    chart_dir: options.Chart = None,
    nodes: options.Nodes = None,
    gpus_per_node: options.GpusPerNode = None,
    kubeconfig: options.Kubeconfig = None,
    context: options.Context = None,
) -> None:
    """Start a cluster on this machine (or take the current one) and install Longshore in it."""
    from longshore_cli import chart, cluster

    console = _console()
    target = Target(kubeconfig, context)
    if kind is ClusterKind.EMBEDDED:
        target = Target(cluster.start_embedded(nodes, gpus_per_node))
        console.print("The embedded cluster runs. It serves development and tests only.")
    kube = target.connect()
    installed = _chart_options(chart_dir, values, operator_image, runtime_image)
    done = chart.install(kube, chart.Cluster(kubeconfig_path(target), context), installed)
    console.print(f"The chart is {done}; waiting for the operator …")
    cluster.wait_for_operator(kube, installed.namespace)
    console.print("The operator is available. Try:")
    if kind is ClusterKind.EMBEDDED:
        console.print(f"  export KUBECONFIG={target.kubeconfig}", soft_wrap=True)
    console.print("  kubectl get rljobs --all-namespaces")
    console.print("  longshore submit manifests/quickstart.yaml --wait")


@app.command()
def down(
    kind: options.Cluster = ClusterKind.EMBEDDED,
    delete_data: Annotated[
        bool, typer.Option("--delete-data", help="Also delete the embedded cluster's data.")
    ] = False,
    kubeconfig: options.Kubeconfig = None,
    context: options.Context = None,
) -> None:
    """Stop the cluster on this machine with everything in it, or remove Longshore from the current one."""
    from longshore_cli import chart, cluster

    console = _console()
    if kind is ClusterKind.EMBEDDED:
        was_running = cluster.stop_embedded(delete_data=delete_data)
        console.print("The embedded cluster is stopped." if was_running else "No embedded cluster was running here.")
        return
    where = chart.Cluster(kubeconfig_path(Target(kubeconfig, context)), context)
    removed = chart.uninstall(where, chart.NAMESPACE)
    console.print("Longshore is removed; its CRD and RLJobs stay." if removed else "Longshore was not installed.")


@app.command()
def submit(
    file: Annotated[Path, typer.Argument(help="YAML file with an RLJob, and what it needs.")],
    wait: Annotated[bool, typer.Option("--wait", help="Watch the job until it is finished.")] = False,
    modules: Annotated[
        list[Path] | None,
        typer.Option("--with", help="Python file with reward functions; repeat it for several. 1 MiB together."),
    ] = None,
    namespace: options.Namespace = None,
    kubeconfig: options.Kubeconfig = None,
    context: options.Context = None,
) -> None:
    """Apply the objects of a file."""
    from longshore_cli import jobs
    from longshore_cli.modules import read_modules, submit_with, with_modules

    documents, config_map = jobs.read_manifest(file), None
    if modules:
        documents, config_map = with_modules(documents, read_modules(modules))
    kube = Target(kubeconfig, context, namespace).connect()
    for applied in submit_with(kube, documents, config_map) if config_map else jobs.submit(kube, documents):
        _console().print(f"{applied} applied")
    if wait:
        for name in jobs.jobs_in(documents):
            _watch(Target(kubeconfig, context, namespace), name)


@app.command()
def watch(
    job: options.Job,
    namespace: options.Namespace = None,
    kubeconfig: options.Kubeconfig = None,
    context: options.Context = None,
) -> None:
    """Show a job live until it is finished; the exit code is 0 when it succeeded."""
    _watch(Target(kubeconfig, context, namespace), job)


@app.command()
def logs(
    job: options.Job,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the pod ends.")] = False,
    component: Annotated[Component, typer.Option(help="Which pods.")] = Component.COORDINATOR,
    index: Annotated[int, typer.Option(help="Which worker, trainer, reward or judge pod.")] = 0,
    tail: Annotated[int | None, typer.Option(help="Only so many last lines.")] = None,
    previous: Annotated[bool, typer.Option("--previous", "-p", help="The container before the last restart.")] = False,
    namespace: options.Namespace = None,
    kubeconfig: options.Kubeconfig = None,
    context: options.Context = None,
) -> None:
    """Print the log of a pod of a job."""
    from longshore_cli import jobs

    kube = Target(kubeconfig, context, namespace).connect()
    pod = jobs.pod_name(job, component, index)
    for line in jobs.pod_log(kube, pod, follow=follow, tail_lines=tail, previous=previous):
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
    from longshore_cli import fetch, jobs
    from longshore_cli.transfer import copy

    kube = Target(kubeconfig, context, namespace).connect()
    found = kube.job(job)
    claim = jobs.claim_of(kube, job, image)
    if lists:
        there = fetch.checkpoint_lines(copy.listing(kube, claim, fetch.checkpoints_path(found)))
        _console().print("\n".join(there) or f"The RLJob {job!r} has no checkpoint.", markup=False, soft_wrap=True)
        return
    wanted = fetch.source_path(found, checkpoint, path)
    destination = destination or Path(job)
    with _transfer_progress() as progress:
        task = progress.add_task(f"{job}:{wanted}", total=None)
        num_files = copy.fetch(
            kube, claim, wanted, destination, force=force,
            progress=lambda done, total: progress.update(task, completed=done, total=total),
        )  # fmt: skip
    told = f"{wanted}: {fmt.count(num_files, 'file')} in {destination}, checksums verified."
    _console().print(told, markup=False, soft_wrap=True)


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
    from longshore_cli import jobs
    from longshore_cli.transfer import copy

    kube = Target(kubeconfig, context, namespace).connect()
    is_job = kube.find_job(job_or_claim) is not None
    claim = jobs.claim_of(kube, job_or_claim, image) if is_job else jobs.claim_named(kube, job_or_claim, image)
    with _transfer_progress() as progress:
        task = progress.add_task(f"{claim.name}:{destination}", total=None)
        copy.put(
            kube, claim, source, destination, force=force,
            progress=lambda done, total: progress.update(task, completed=done, total=total),
        )  # fmt: skip
    _console().print(f"{source} is {destination} in the claim {claim.name}, checksums verified.", soft_wrap=True)


@app.command()
def suspend(
    job: options.Job,
    namespace: options.Namespace = None,
    kubeconfig: options.Kubeconfig = None,
    context: options.Context = None,
) -> None:
    """Stop the pods of a job; its state is kept."""
    from longshore_cli import jobs

    jobs.set_suspended(Target(kubeconfig, context, namespace).connect(), job, suspended=True)
    _console().print(f"rljob/{job} is being suspended; go on with `longshore resume {job}`.")


@app.command()
def resume(
    job: options.Job,
    namespace: options.Namespace = None,
    kubeconfig: options.Kubeconfig = None,
    context: options.Context = None,
) -> None:
    """Go on with a suspended job from its newest checkpoint."""
    from longshore_cli import jobs

    jobs.set_suspended(Target(kubeconfig, context, namespace).connect(), job, suspended=False)
    _console().print(f"rljob/{job} is being resumed.")


@app.command()
def quickstart(
    kind: options.Cluster = ClusterKind.EMBEDDED,
    manifest: Annotated[
        Path | None, typer.Option("--file", "-f", help="The job; unset: manifests/quickstart.yaml.")
    ] = None,
    operator_image: options.OperatorImage = None,
    runtime_image: options.RuntimeImage = None,
    values: options.Values = None,
    chart_dir: options.Chart = None,
    namespace: options.Namespace = None,
    kubeconfig: options.Kubeconfig = None,
    context: options.Context = None,
) -> None:
    """From nothing to a trained model: cluster, chart, RLJob, live view, figures."""
    from longshore_cli import quickstart as quickstart_steps

    plan = quickstart_steps.Quickstart(
        kind,
        Target(kubeconfig, context, namespace),
        _chart_options(chart_dir, values, operator_image, runtime_image),
        manifest or quickstart_steps.default_manifest(),
    )
    quickstart_steps.run(plan, _console())


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

    kube = Target(kubeconfig, context, namespace).connect()
    profiling.run(kube, profiling.Plan(file, out, keep=keep, force=force, image=image), _console())


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
    for line in tracing.told(found, tracing.write(job, found, target), target):
        _console().print(line, markup=False, soft_wrap=True)


app.command()(ui)
app.command()(report)
app.command()(simulate)
app.command()(check)


@app.command()
def version() -> None:
    """Print the version."""
    from importlib.metadata import version as package_version

    typer.echo(f"longshore {package_version('longshore')}")


def _watch(target: Target, job: str) -> None:
    from longshore.api.status import Phase
    from longshore_cli.watch import follow as watching
    from longshore_cli.watch import text

    console = _console()
    view = watching.follow(target.connect(), job, console).view
    succeeded = view.phase is Phase.SUCCEEDED
    console.print(text.ending_text(view), style="bold green" if succeeded else "bold red", markup=False, soft_wrap=True)
    if not succeeded:
        raise typer.Exit(EXIT_FAILED)


def _chart_options(chart_dir: Path | None, values: Path | None, operator_image: str | None,
                   runtime_image: str | None) -> "ChartOptions":  # fmt: skip
    from longshore_cli import chart

    given = _read_values(values) if values else {}
    return chart.ChartOptions(
        chart_dir or chart.default_chart(), values=chart.values(given, operator_image, runtime_image)
    )


def _read_values(path: Path) -> "Json":
    import yaml

    if not path.is_file():
        raise CliError(f"There is no file {path}.")
    found = yaml.safe_load(path.read_text()) or {}
    if not isinstance(found, dict):
        raise CliError(f"{path} holds no mapping of chart values.")
    return found


def _transfer_progress() -> "Progress":
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    return Progress(*columns, console=_errors(), disable=not _errors().is_terminal)


def _told(error: Exception) -> CliError | None:
    """As one sentence, if it is an error that is expected."""
    if isinstance(error, CliError):
        return error
    from longshore_cli.explained import explain
    from longshore_kube.errors import KubeError

    return explain(error) if isinstance(error, KubeError) else None


def _print_error(error: CliError) -> None:
    _errors().print("error:", style="bold red", end=" ")
    _errors().print(error.message, markup=False, soft_wrap=True)
    if error.fix:
        _errors().print(error.fix, style="dim", markup=False, soft_wrap=True)


def _console() -> Console:
    # A pipe has no width: whoever reads it may search for whole sentences.
    return Console(highlight=False, soft_wrap=not sys.stdout.isatty())


def _errors() -> Console:
    return Console(stderr=True, highlight=False)
