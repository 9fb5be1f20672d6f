"""What a job writes into its storage, by paths relative to it."""

from longshore_client import jobs
from longshore_client.errors import ClientError
from longshore_client.view import job_view
from longshore_kube.resources import Json


def source_path(job: Json, checkpoint: int | None, path: str | None) -> str:
    """Return a path relative to the storage: `path`, the model and optimizer of a checkpoint, or the newest model.

    The newest is the final model, or the newest checkpoint of a job that has none (yet).

    Raises:
        ClientError: two were asked for, or the job has neither yet.
    """
    if checkpoint is not None and path is not None:
        raise ClientError("A checkpoint and a path exclude each other.", "Give one of them.")
    if path is not None:
        return path
    if checkpoint is not None:
        return f"{checkpoints_path(job)}/step-{checkpoint:06d}/trainer"
    view = job_view(job)
    if view.runtime.final_model is not None:
        return view.runtime.final_model
    if view.runtime.checkpoint_step:
        return source_path(job, view.runtime.checkpoint_step, None)
    raise ClientError(
        f"The RLJob {view.name!r} has neither a final model nor a checkpoint: it is {view.phase}.",
        "" if view.is_finished else "Its first checkpoint comes after checkpoint.everySteps steps or everySeconds.",
    )


def checkpoints_path(job: Json) -> str:
    """Return where the checkpoints of a job are, relative to its storage."""
    return f"{jobs.output_path(job)}/checkpoints"
