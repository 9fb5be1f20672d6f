"""Refusals of manifests that would change a job which is there."""

from collections.abc import Iterator
from typing import Any, Final

from pydantic import ValidationError

from longshore.api.mistakes import sentence
from longshore.api.status import FINISHED_PHASES, Phase
from longshore_client.errors import ClientError
from longshore_kube.resources import Json

_AT_ANY_TIME: Final = ("suspend", "ttlSecondsAfterFinished", "activeDeadlineSeconds", "backoffLimit")
_NEVER: Final = ("model", "data", "storage")
"""Fields that are immutable."""


def refused_change(there: Json, wanted: Json, *, is_immutable: bool) -> ClientError:
    """Return the refusal to change a job, with the fields and the commands that help.

    Args:
        is_immutable: whether the API server has refused a change of a field that never changes.
    """
    name = there["metadata"]["name"]
    instead = f"Choose another metadata.name, or run `kubectl delete rljob {name}` and submit the file again."
    if has_ended(there):
        return ended(there)
    stored, given = ({k: v for k, v in one["spec"].items() if k not in _AT_ANY_TIME} for one in (there, wanted))
    changed = list(changed_fields(stored, given))
    if is_immutable:
        fixed = [field for field in changed if field.partition(".")[0] in _NEVER] or _NEVER
        return ClientError(
            f"There is an RLJob {name!r} already, and {', '.join(fixed)} of a job never change.", instead
        )
    fields = ", ".join(changed) or "A field that the file leaves out"
    return ClientError(
        f"{fields}: this may change only while the RLJob {name!r} is suspended.",
        f"Run `longshore suspend {name}`, submit the file again, and run `longshore resume {name}`.",
    )


def has_ended(job: Json) -> bool:
    """Return whether a job, as the API server gives it, has succeeded or failed."""
    return (job.get("status") or {}).get("phase") in FINISHED_PHASES


def ended(job: Json) -> ClientError:
    """Return the refusal to run a job again that has ended, with the commands that help."""
    name, phase = job["metadata"]["name"], Phase(job["status"]["phase"])
    has_checkpoint = bool((job["status"].get("runtime") or {}).get("checkpointStep"))
    if phase is Phase.FAILED and has_checkpoint:
        advice = f"`longshore resume {name}` says how a new job continues from its newest checkpoint."
    else:
        advice = f"`longshore watch {name}` shows how it ended."
    storage = "" if job["spec"].get("storage", {}).get("claimName") else ", which deletes its storage as well,"
    return ClientError(
        f"The RLJob {name!r} has {phase.lower()} already, and an ended job never runs again.",
        f"To run it again, choose another metadata.name, or run `kubectl delete rljob {name}`{storage} and submit the "
        f"file again. {advice}",
    )


def spelling_mistake(manifest: Json) -> str | None:
    """Return a sentence about the first field of an RLJob that there is not, with the nearest name; None: all exist."""
    from longshore.api.rljob import RLJob  # Building the models takes longer than most commands.

    try:
        RLJob.model_validate(manifest)
    except ValidationError as error:
        return f"{sentence(error, model=RLJob)}."
    return None


def changed_fields(stored: Any, given: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of fields that `given` has and whose values in `stored` are others."""
    if isinstance(given, list) and isinstance(stored, list) and len(given) == len(stored):
        # Stored items have defaults that the file leaves out.
        if any(True for one, other in zip(stored, given, strict=True) for _ in changed_fields(one, other, "item")):
            yield path
        return
    if not isinstance(given, dict) or not isinstance(stored, dict):
        if stored != given:
            yield path
        return
    for key, value in given.items():
        yield from changed_fields(stored.get(key), value, f"{path}.{key}" if path else key)
