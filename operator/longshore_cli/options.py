"""Options that several commands share."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer


class ClusterKind(StrEnum):
    """Where RLJobs are to run."""

    EMBEDDED = "embedded"
    CURRENT = "current"


PROFILE_FILE: Final = "profile.json"
"""What `longshore profile` writes, here and in the storage of the job that measures."""

Kubeconfig = Annotated[
    Path | None,
    typer.Option(help="Kubeconfig file; unset: $KUBECONFIG, this directory's embedded cluster, or ~/.kube/config."),
]
Context = Annotated[str | None, typer.Option(help="Context of the kubeconfig; unset: its current one.")]
Namespace = Annotated[str | None, typer.Option("--namespace", "-n", help="Namespace; unset: that of the context.")]
Job = Annotated[str, typer.Argument(help="Name of the RLJob.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite what is at the destination.")]
Image = Annotated[
    str | None, typer.Option(help="Image of the helper pod, with Python in it; unset: the runtime image of the job.")
]
Cluster = Annotated[
    ClusterKind,
    typer.Option("--cluster", help="embedded: a cluster on this machine; current: that of the kubeconfig."),
]
Values = Annotated[Path | None, typer.Option(help="YAML file with values of the chart.")]
Nodes = Annotated[int | None, typer.Option(help="Nodes of the embedded cluster.", min=1)]
GpusPerNode = Annotated[int | None, typer.Option(help="Pretend GPUs of each of its nodes.", min=0)]
OperatorImage = Annotated[str | None, typer.Option(help="Image of the operator; unset: that of the chart.")]
RuntimeImage = Annotated[str | None, typer.Option(help="Default image of jobs; unset: that of the chart.")]
AllNamespaces = Annotated[bool, typer.Option("--all-namespaces", "-A", help="The jobs of every namespace.")]
Chart = Annotated[
    Path | None, typer.Option("--chart", help="Directory of the chart; unset: the one that comes with this program.")
]
