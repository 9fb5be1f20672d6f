"""`--share`: what jobs like this one gain if they take turns on GPUs."""

from dataclasses import replace

from pydantic import Field
from rich.console import Console

from longshore.api.base import ApiModel
from longshore.api.spec import Placement, RLJobSpec
from longshore.sim.job import SimJob, Training
from longshore.sim.sharing_group import shared_job
from longshore.sim.sharing_mix import Nodes, alike, run_mix
from longshore_cli import format as fmt
from longshore_cli.simulate.errors import BadInput


class ShareReport(ApiModel):
    """Jobs alike that share GPUs, alongside the same jobs that do not."""

    num_jobs: int
    max_slowdown: float
    """The limit of every job."""
    own_gpus: int = Field(alias="ownGpus")
    """Those that each job does not share."""
    num_gpus_alone: int
    num_gpus: int
    """Own and shared GPUs of all groups."""
    num_groups: int
    alone_s: float = Field(alias="aloneSeconds")
    """Mean step of a job that does not share."""
    slowdown: float
    """Of the job that loses most."""
    longest_wait_s: float = Field(alias="longestWaitSeconds")
    gain: float
    """GPU hours of the same steps without sharing over those with it."""


def share(job: SimJob, spec: RLJobSpec, num_jobs: int, max_slowdown: float, num_steps: int) -> ShareReport:
    """Simulate so many jobs like this one; each keeps a quarter of its pods, or one."""
    if spec.placement is not Placement.COLOCATED or job.trainer.training is not Training.AFTER_ROUND:
        raise BadInput("--share: a job that shares GPUs trains after the round on the GPUs of its engines.",
                       "Set placement: Colocated and rollout.handover: AfterRound.")  # fmt: skip
    if job.plans_parallelism:
        raise BadInput("--share: the engines of a job that shares GPUs do not regroup.",
                       "Set rollout.engine.parallelism: Fixed.")  # fmt: skip
    pods = job.gpus.pods()
    if len(pods) < 2:
        raise BadInput("--share: a job keeps some of its pods and shares the others, and this one has one pod.",
                       "Set workers.replicas to 2 or more.")  # fmt: skip
    num_own_gpus = max(1, len(pods) // 4) * len(pods[0])
    one = shared_job("job", replace(job, num_own_gpus=num_own_gpus), num_steps, num_warm_up_steps=num_steps)
    found = run_mix(alike(one, num_jobs), max_slowdown, Nodes(slot_gpus=len(pods[0])))
    return ShareReport(
        num_jobs=num_jobs,
        max_slowdown=max_slowdown,
        own_gpus=num_own_gpus,
        num_gpus_alone=found.num_gpus_alone,
        num_gpus=found.num_gpus,
        num_groups=found.num_groups,
        alone_s=one.alone_s,
        slowdown=found.max_slowdown,
        longest_wait_s=max(member.longest_wait_s for member in found.members),
        gain=found.gain,
    )


def show(report: ShareReport, title: str, console: Console) -> None:
    """In three sentences."""
    console.print(title, style="bold", markup=False, soft_wrap=True)
    jobs, groups = fmt.count(report.num_jobs, "job"), fmt.count(report.num_groups, "group")
    for sentence in (
        f"{jobs} in {groups} need {report.num_gpus} GPUs instead of {report.num_gpus_alone}; each keeps "
        f"{report.own_gpus} for itself.",
        f"Steps take up to {report.slowdown:.2f} times as long as {fmt.duration(report.alone_s)} alone (limit "
        f"{report.max_slowdown:g}), and wait for at most {fmt.duration(report.longest_wait_s)}.",
    ):
        console.print(sentence, markup=False, soft_wrap=True)
    console.print(f"{report.gain:.2f} times as many jobs per GPU hour.", style="bold green", markup=False)
