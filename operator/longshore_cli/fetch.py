"""Which path of the storage a person means by `fetch`."""

from longshore_cli import jobs
from longshore_cli.client import Json
from longshore_cli.errors import CliError
from longshore_cli.watch.model import job_view


def source_path(job: Json, checkpoint: int | None, path: str | None) -> str:
    """A path relative to the storage: `path`, the model and optimizer of a checkpoint, or the final model.

    Raises:
        CliError: two were asked for, or the job has no final model yet.
    """
    if checkpoint is not None and path is not None:
        raise CliError("--checkpoint and --path exclude each other.", "Give one of them.")
    if path is not None:
        return path
    if checkpoint is not None:
        return f"{jobs.output_path(job)}/checkpoints/step-{checkpoint:06d}/trainer"
    view = job_view(job)
    if view.runtime.final_model is None:
        newest = view.runtime.checkpoint_step
        raise CliError(
            f"The RLJob {view.name!r} has no final model: it is {view.phase}.",
            f"Fetch its newest checkpoint with --checkpoint {newest}." if newest else "Wait until it has succeeded.",
        )
    return view.runtime.final_model
