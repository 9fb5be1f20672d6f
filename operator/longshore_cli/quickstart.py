"""From nothing to a trained model, step by step, with the same commands that a person would type."""

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.rule import Rule

from longshore.api import names
from longshore.api.status import Phase
from longshore_cli import chart, cluster, comparison, summary
from longshore_cli import format as fmt
from longshore_cli.chart import ChartOptions
from longshore_cli.comparison import Comparison
from longshore_cli.errors import CliError
from longshore_cli.options import ClusterKind
from longshore_cli.watch.follow import follow
from longshore_cli.watch.history import WatchHistory
from longshore_client import jobs
from longshore_client.kube import Kube
from longshore_client.target import Target, kubeconfig_path
from longshore_client.view import verdict
from longshore_kube.errors import ApiError
from longshore_kube.resources import Json

NUM_STEPS: Final = 6
LOG_TAIL_LINES: Final = 25


@dataclass(frozen=True)
class Quickstart:
    """What to run, and where."""

    kind: ClusterKind
    target: Target
    options: ChartOptions
    manifest: Path
    is_compared: bool = True
    """Whether the first steps are repeated with synchronous rollout."""


def run(plan: Quickstart, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
    """Run all steps of the quickstart; the cluster stays up.

    Raises:
        CliError: a step failed; with its sentence.
    """
    started_s = clock()
    document = jobs.only_job(jobs.read_manifest(plan.manifest), plan.manifest, "run by the quickstart")
    job = document["metadata"]["name"]
    jobs.require_namespace([document], plan.target.namespace)
    target = plan.target
    with _step(console, 1, "Start a cluster", clock):
        if plan.kind is ClusterKind.EMBEDDED:
            target = Target(cluster.start_embedded(), None, plan.target.namespace)
            console.print("An embedded cluster runs on this machine: real API, pretend GPUs, pods as processes.")
        kube = target.connect().within(document)
        console.print(f"Its API server: {kube.api.access.server}", highlight=False)
    with _step(console, 2, "Install Longshore with Helm", clock):
        where = chart.Cluster(kubeconfig_path(target), target.context)
        done = chart.install(kube, where, plan.options)
        console.print(f"Chart {plan.options.chart.name}: {done}", highlight=False)
        cluster.wait_for_operator(kube, plan.options.namespace)
        console.print("The operator is available.")
    with _step(console, 3, "Apply an RLJob", clock):
        if message := jobs.make_room(kube, job, otherwise="the quickstart continues with it"):
            console.print(message)
        _apply(kube, target, plan.manifest, console)
    with _step(console, 4, "Watch it learn", clock):
        console.print(f"The same at any time: longshore watch {job}", style="dim")
        seen = follow(kube, job, console, clock)
    _require_success(kube, job, seen)
    with _step(console, 5, "Compare its first steps with synchronous rollout", clock):
        found = _compared(plan, kube, document, console, clock)
    _headline(console, 6, "What it has shown")
    console.print(summary.table(seen, found) if console.is_terminal else summary.lines(seen, found))
    kubeconfig = kubeconfig_path(target) if plan.kind is ClusterKind.EMBEDDED else None
    steps = next_commands(job, kube.namespace, kubeconfig, _programs_off_the_path())
    console.print(steps, highlight=False, soft_wrap=True)
    held_out = seen.view.runtime.held_out
    learned = fmt.change(held_out.before, held_out.latest)
    console.print(
        f"quickstart: Succeeded in {fmt.duration(clock() - started_s)}, held-out reward {learned}", style="bold green"
    )


def _compared(
    plan: Quickstart, kube: Kube, document: Json, console: Console, clock: Callable[[], float]
) -> Comparison | None:
    synchronous = comparison.synchronous(document) if plan.is_compared else None
    if synchronous is None:
        console.print("Left out." if not plan.is_compared else "Its rollout is synchronous itself.", style="dim")
        return None
    return comparison.compare(kube, document, synchronous, console, clock)


def failure_report(kube: Kube, job: str) -> str:
    """Return the tail of the coordinator's log, indented."""
    try:
        lines = list(kube.log_lines(names.coordinator_pod(job), tail_lines=LOG_TAIL_LINES))
    except ApiError:
        return ""
    return "\n".join(f"  {line}" for line in lines)


@contextmanager
def _step(console: Console, number: int, title: str, clock: Callable[[], float]) -> Iterator[None]:
    _headline(console, number, title)
    started_s = clock()
    yield
    console.print(f"({fmt.duration(clock() - started_s)})", style="dim", highlight=False)


def _headline(console: Console, number: int, title: str) -> None:
    console.print(Rule(f"[bold]{number}/{NUM_STEPS}  {title}[/bold]", align="left"))


def _apply(kube: Kube, target: Target, manifest: Path, console: Console) -> None:
    if shutil.which("kubectl") is None:
        console.print("There is no kubectl on the PATH, so Longshore's own client applies the file.")
        for applied in jobs.submit(kube, jobs.read_manifest(manifest)):
            console.print(jobs.applied_text(applied), highlight=False)
        return
    command = ["kubectl", "apply", "-n", kube.namespace, "-f", str(manifest)]
    console.print(f"$ {shlex.join(command)}", style="bold", highlight=False, soft_wrap=True)
    path = kubeconfig_path(target)
    environment = os.environ | ({"KUBECONFIG": path} if path else {})
    if target.context:
        command += ["--context", target.context]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CliError(f"kubectl could not apply {manifest}: {' '.join(done.stderr.split())}")
    console.print(done.stdout.rstrip(), highlight=False)


def _require_success(kube: Kube, job: str, seen: WatchHistory) -> None:
    if seen.view.phase is Phase.SUCCEEDED:
        return
    log = failure_report(kube, job)
    raise CliError(
        f"The RLJob {job!r} failed: {verdict(seen.view)}" + (f"\n{log}" if log else ""),
        f"More with `longshore logs {job}` and `kubectl describe rljob {job}`.",
    )


def next_commands(job: str, namespace: str, kubeconfig: str | None, programs: Path | None) -> str:
    """Return what to try after a quickstart.

    Args:
        job: name of the RLJob.
        namespace: namespace of the RLJob.
        kubeconfig: kubeconfig of the embedded cluster; None if another cluster is used.
        programs: directory of `longshore`, unless it is on the PATH.
    """
    within = "" if namespace == "default" else f" -n {namespace}"
    commands = [
        (f"export PATH={programs}:$PATH" if programs else "", "where longshore is"),
        (f"export KUBECONFIG={kubeconfig}" if kubeconfig else "", ""),
        (f"longshore ui {job}{within}", "open its page in the browser"),
        (f"longshore report {job}{within}", f"write its page to {job}.html"),
        (f"longshore fetch {job}{within} trained-model", "copy the final model here"),
        (f"kubectl get rljobs,pods{within} -L longshore.dev/role", "list jobs and pods"),
        (f"kubectl describe rljob {job}{within}", "read its status and events"),
        ("longshore down" if kubeconfig else "", "stop everything"),
    ]
    return "\n".join(["", "Look around:", *(_command(*command) for command in commands if command[0]), ""])


def _programs_off_the_path() -> Path | None:
    """Return the directory of this installation's `longshore`, unless it is the one on the PATH."""
    programs = Path(sys.executable).parent
    found = shutil.which("longshore")
    return None if found is not None and Path(found).parent == programs else programs


def _command(command: str, purpose: str) -> str:
    return f"  {command:<58} # {purpose}" if purpose else f"  {command}"
