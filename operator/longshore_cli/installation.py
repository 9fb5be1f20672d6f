"""`up`, `down` and `quickstart`: a cluster with Longshore in it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from longshore_cli import consoles, options
from longshore_cli.errors import CliError
from longshore_cli.examples import CHART, command_path
from longshore_cli.examples import manifest as example
from longshore_cli.options import ClusterKind
from longshore_client.target import Target, kubeconfig_path

if TYPE_CHECKING:
    from longshore_cli.chart import ChartOptions
    from longshore_kube.resources import Json


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

    console = consoles.output()
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
    console.print(f"  longshore submit {command_path(example('quickstart'))} --wait", soft_wrap=True)


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
    from longshore_client.installed import NAMESPACE

    console = consoles.output()
    if delete_data and kind is not ClusterKind.EMBEDDED:
        raise CliError(f"--delete-data works with the embedded cluster only: leave it out with --cluster {kind}.")
    if kind is ClusterKind.EMBEDDED:
        was_running = cluster.stop_embedded(delete_data=delete_data)
        console.print("The embedded cluster is stopped." if was_running else "No embedded cluster was running here.")
        return
    where = chart.Cluster(kubeconfig_path(Target(kubeconfig, context)), context)
    removed = chart.uninstall(where, NAMESPACE)
    console.print("Longshore is removed; its CRD and RLJobs stay." if removed else "Longshore was not installed.")


def quickstart(
    kind: options.Cluster = ClusterKind.EMBEDDED,
    manifest: Annotated[
        Path | None, typer.Option("--file", "-f", help="The job; unset: the example `quickstart`.")
    ] = None,
    operator_image: options.OperatorImage = None,
    runtime_image: options.RuntimeImage = None,
    values: options.Values = None,
    chart_dir: options.Chart = None,
    compare: Annotated[
        bool, typer.Option("--compare/--no-compare", help="Repeat the first steps with synchronous rollout.")
    ] = True,
    namespace: options.Namespace = None,
    kubeconfig: options.Kubeconfig = None,
    context: options.Context = None,
) -> None:
    """Start a cluster, install the chart, train the job in it, show it live, and print the figures."""
    from longshore_cli import quickstart as quickstart_steps

    plan = quickstart_steps.Quickstart(
        kind,
        Target(kubeconfig, context, namespace),
        _chart_options(chart_dir, values, operator_image, runtime_image),
        manifest or example("quickstart"),
        compare,
    )
    quickstart_steps.run(plan, consoles.output())


def _chart_options(chart_dir: Path | None, values: Path | None, operator_image: str | None,
                   runtime_image: str | None) -> "ChartOptions":  # fmt: skip
    from longshore_cli import chart

    given = _read_values(values) if values else {}
    return chart.ChartOptions(chart_dir or CHART, values=chart.values(given, operator_image, runtime_image))


def _read_values(path: Path) -> "Json":
    import yaml

    if not path.is_file():
        raise CliError(f"There is no file {path}.")
    found = yaml.safe_load(path.read_text()) or {}
    if not isinstance(found, dict):
        raise CliError(f"{path} holds no mapping of chart values.")
    return found
