"""Which path of the storage a person means by `fetch`."""

import re
from collections.abc import Mapping
from typing import Final

from longshore_cli import format as fmt
from longshore_cli import jobs
from longshore_cli.errors import CliError
from longshore_cli.watch.model import job_view
from longshore_kube.resources import Json

_PREFIX: Final = "step-"
_NAME: Final = re.compile(rf"{_PREFIX}\d{{1,12}}", re.ASCII)


def source_path(job: Json, checkpoint: int | None, path: str | None) -> str:
    """A path relative to the storage: `path`, the model and optimizer of a checkpoint, or the newest model.

    The newest is the final model, or the newest checkpoint of a job that has none (yet).

    Raises:
        CliError: two were asked for, or the job has neither yet.
    """
    if checkpoint is not None and path is not None:
        raise CliError("--checkpoint and --path exclude each other.", "Give one of them.")
    if path is not None:
        return path
    if checkpoint is not None:
        return f"{checkpoints_path(job)}/step-{checkpoint:06d}/trainer"
    view = job_view(job)
    if view.runtime.final_model is not None:
        return view.runtime.final_model
    if view.runtime.checkpoint_step:
        return source_path(job, view.runtime.checkpoint_step, None)
    raise CliError(
        f"The RLJob {view.name!r} has neither a final model nor a checkpoint: it is {view.phase}.",
        "" if view.is_finished else "Its first checkpoint comes after checkpoint.everySteps steps.",
    )


def checkpoint_lines(sizes: Mapping[str, int]) -> list[str]:
    """One line for each checkpoint, newest last, from the bytes of what its directory holds."""
    steps = {int(name.removeprefix(_PREFIX)): num_bytes for name, num_bytes in sizes.items() if _NAME.fullmatch(name)}
    return [f"--checkpoint {step:<8} {fmt.size(num_bytes)}" for step, num_bytes in sorted(steps.items())]


def checkpoints_path(job: Json) -> str:
    """Where the checkpoints of a job are, relative to its storage."""
    return f"{jobs.output_path(job)}/checkpoints"
