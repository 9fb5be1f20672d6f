"""`longshore profile`: measure a job's model on the job's own kind of pods, and bring the figures here."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich import box
from rich.console import Console
from rich.table import Table

from longshore.api import names
from longshore.api.spec import Profiling
from longshore.api.status import Phase
from longshore.sim.profile import DecodePoint, Profile
from longshore_cli import format as fmt
from longshore_cli.errors import CliError
from longshore_cli.options import PROFILE_FILE
from longshore_cli.simulate.inputs import read_profile
from longshore_cli.watch.follow import follow
from longshore_client import jobs
from longshore_client.kube import Kube
from longshore_client.transfer import copy
from longshore_client.view import verdict
from longshore_kube.resources import Json

_SUFFIX: Final = "-profile"
_DECODE_TITLE: Final = "Milliseconds of a decode step, and at how many tokens of context per request"

Row = tuple[str, str, str]
"""What, how much, from how many measurements."""


@dataclass(frozen=True)
class ProfilePlan:
    """What to measure, and where the figures go."""

    manifest: Path
    out: Path
    namespace: str | None = None
    """What --namespace says."""
    keep: bool = False
    force: bool = False
    image: str | None = None


def run(kube: Kube, plan: ProfilePlan, console: Console) -> None:
    """Submit a job that only measures, follow it, copy its profile here, show it, and remove the job.

    Raises:
        CliError: one sentence on what is in the way. A job that failed stays, for its logs.
    """
    if plan.out.exists() and not plan.force:
        raise CliError(f"{plan.out} exists already.", "Choose another place with --out, or overwrite it with --force.")
    documents = jobs.read_manifest(plan.manifest)
    jobs.require_namespace(documents, plan.namespace)
    given = jobs.only_job(documents, plan.manifest, "profiled")
    commanded, kube = kube, kube.within(given)
    measuring = profiling_job(given, shares_claim=kube.find_job(given["metadata"]["name"]) is not None)
    name = measuring["metadata"]["name"]
    if message := jobs.make_room(kube, name, otherwise="it is followed"):
        console.print(message)
    for applied in jobs.submit(commanded, [measuring if one is given else one for one in documents]):
        console.print(jobs.applied_text(applied), markup=False)
    view = follow(kube, name, console).view
    if view.phase is not Phase.SUCCEEDED:
        raise CliError(
            f"The RLJob {name!r}, which measures, failed: {verdict(view)}",
            f"More with `longshore logs {name}`; remove it with `kubectl delete rljob {name}`.",
        )
    claim, path = jobs.claim_of(kube, name, plan.image), f"{jobs.output_path(kube.job(name))}/{PROFILE_FILE}"
    copy.fetch(kube, claim, path, plan.out, force=plan.force)
    if not plan.keep:
        jobs.delete(kube, name, view.uid)
    show(read_profile(plan.out), console)
    kept = f" The RLJob {name!r} is kept." if plan.keep else ""
    console.print(f"The profile is in {plan.out}.{kept} Use it with:", markup=False, soft_wrap=True)
    console.print(f"  longshore simulate {plan.manifest} --profile {plan.out}", markup=False, soft_wrap=True)


def profiling_job(given: Json, *, shares_claim: bool) -> Json:
    """Return the RLJob that measures for another one, and writes nowhere where that one would.

    `shares_claim`: the other one exists, so that the claim which the operator made for it has the model.
    """
    metadata, spec = given["metadata"], dict(given.get("spec") or {})
    storage = {key: value for key, value in (spec.get("storage") or {}).items() if key != "output"}
    if shares_claim and "create" in storage:
        storage = {"claimName": names.storage_claim(metadata["name"])}
    kept = {key: value for key, value in metadata.items() if key in ("namespace", "labels", "annotations")}
    spec |= {"profiling": Profiling.ONLY.value, "storage": storage, "suspend": False}
    spec.pop("ttlSecondsAfterFinished", None)
    return {
        "apiVersion": given["apiVersion"],
        "kind": given["kind"],
        "metadata": {**kept, "name": profiling_name(metadata["name"])},
        "spec": spec,
    }


def profiling_name(job: str) -> str:
    """Return the name of the RLJob that measures for a job: as long as a name may be."""
    return job[: names.MAX_JOB_NAME_LENGTH - len(_SUFFIX)].rstrip("-.") + _SUFFIX


def show(profile: Profile, console: Console) -> None:
    """Print what was measured."""
    subject = profile.subject
    if subject is not None:
        versions = ", ".join(f"{name} {version}" for name, version in subject.versions.items())
        console.print(f"{subject.model} on {subject.gpu}, measured with {versions}", style="bold", markup=False)
    if profile.decode:
        console.print(decode_table(profile.decode))
    console.print(figures_table(profile))


def decode_table(points: Sequence[DecodePoint]) -> Table:
    """Return milliseconds of a decode step by requests in the batch, for short and for long contexts, size by size."""
    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=_DECODE_TITLE, title_justify="left")
    drawn.add_column("requests", justify="right")
    by_size: dict[int, dict[int, list[DecodePoint]]] = defaultdict(lambda: defaultdict(list))
    for point in points:
        by_size[point.tp_size][point.num_running].append(point)
    for tp_size in sorted(by_size):
        for context in ("short", "long"):
            drawn.add_column(f"TP {tp_size}, {context}", justify="right")
    for num_running in sorted({point.num_running for point in points}):
        cells = [_pair(by_size[tp_size][num_running]) for tp_size in sorted(by_size)]
        drawn.add_row(f"{num_running:,}", *(cell for pair in cells for cell in pair))
    return drawn


def figures_table(profile: Profile) -> Table:
    """Return everything else that was measured."""
    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    drawn.add_column("figure")
    drawn.add_column("median", justify="right")
    drawn.add_column("measurements", justify="right")
    for row in rows(profile):
        drawn.add_row(*row)
    return drawn


def rows(profile: Profile) -> Iterator[Row]:
    """Return a row for each figure that was measured."""
    for tp_size, tokens in profile.kv_capacity_tokens.items():
        yield f"KV cache, TP {tp_size}", f"{tokens:,} tokens", _count(profile, f"kvCapacityTokens.{tp_size}")
    for one in profile.prefill:
        what = f"prefill, TP {one.tp_size}, prompts of {one.prompt_tokens:,} tokens"
        yield what, f"{one.tokens_per_s:,.0f} tokens/s", str(one.measurements or "")
    if profile.train_tokens_per_s is not None:
        rate = f"{profile.train_tokens_per_s:,.0f} tokens/s"
        yield "forward and backward, per trainer GPU", rate, _count(profile, "trainTokensPerSecond")
    for what, key, seconds in (
        ("optimizer step", "optimizerSeconds", profile.optimizer_s),
        ("publication of weights", "publishSeconds", profile.publish_s),
        ("rollout to training", "toTrainingSeconds", profile.to_training_s),
        ("training to rollout", "toRolloutSeconds", profile.to_rollout_s),
        ("migration, besides recomputation", "migrationSeconds", profile.migration_s),
        ("engines of another size", "regroupSeconds", profile.regroup_s),
    ):
        if seconds is not None:
            yield what, _seconds(seconds), _count(profile, key)
    for judge in profile.judge:
        memory = "" if judge.peak_bytes is None else f", {fmt.size(judge.peak_bytes)}"
        what = f"judge {judge.function}, questions of {judge.question_tokens:,} tokens"
        yield what, _seconds(judge.seconds) + memory, str(judge.measurements or "")


def _pair(points: Sequence[DecodePoint]) -> tuple[str, str]:
    """Return the point of the shortest contexts and that of the longest."""
    if not points:
        return "", ""
    ordered = sorted(points, key=lambda point: point.context_tokens)
    return _cell(ordered[0]), _cell(ordered[-1]) if len(ordered) > 1 else ""


def _cell(point: DecodePoint) -> str:
    return f"{1000 * point.step_s:.2f} at {point.context_tokens // point.num_running:,}"


def _seconds(seconds: float) -> str:
    return f"{1000 * seconds:.1f} ms" if seconds < 1 else fmt.duration(seconds)


def _count(profile: Profile, key: str) -> str:
    return str(profile.measurements.get(key, ""))
