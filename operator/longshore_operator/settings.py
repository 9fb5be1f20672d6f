"""The settings that an attempt was started with, which it keeps until it ends.

A new version of the operator may read other settings from the same spec: a default has changed, a field is new, another
image is installed. The user has changed nothing, so no running job restarts, and a replaced pod must suit those that
still run. The status therefore says what the attempt was started with, and which generation of the spec agrees with it.
"""

from functools import cache
from typing import Final

from longshore.api.reasons import EventReason
from longshore.api.spec import RLJobSpec
from longshore.api.status import AttemptSettings, RLJobStatus
from longshore_operator.context import Context
from longshore_operator.identity import Identity, fingerprint
from longshore_operator.plan import Event, Outcome

NOT_SEEN_BY_PODS: Final = frozenset(
    {
        "managed_by",
        "suspend",
        "ttl_seconds_after_finished",
        "active_deadline_seconds",
        "backoff_limit",
        "image",
    }
)
"""Changes of these do not restart a running job; a new image is taken by the next attempt."""
HOW_TO_TAKE_EFFECT: Final = "takes effect with the next attempt: suspend and resume the job to start one"


def pod_settings_fingerprint(spec: RLJobSpec) -> str:
    """Return the fingerprint of the settings of pods, which begins with that of the API models."""
    settings = spec.model_dump(mode="json", by_alias=True, exclude=set(NOT_SEEN_BY_PODS))
    return f"{_api_fingerprint()}-{fingerprint(settings)}"


@cache
def _api_fingerprint() -> str:
    """Return the fingerprint of the API models.

    Versions of the operator with equal fields and defaults have the same one.
    """
    return fingerprint(RLJobSpec.model_json_schema())


def settings_changed(recorded: AttemptSettings | None, generation: int, current: str) -> bool:
    """Return whether the user has changed the settings since the attempt was started with those that are recorded.

    Fingerprints can be compared only if the same fields and defaults were read. Otherwise the number of changes counts.
    The API server refuses to change settings of a job that is not suspended, so a single change was one of something
    else; more may have been a suspension, a change and a resumption.
    """
    if recorded is None or generation == recorded.generation:
        return False
    if recorded.fingerprint.partition("-")[0] != current.partition("-")[0]:
        return generation > recorded.generation + 1
    return recorded.fingerprint != current


def reconcile_settings(context: Context) -> Outcome:
    """Record the settings while the attempt has no coordinator yet; from then on only which generation agrees."""
    job, recorded = context.job, context.job.status.settings
    if not context.progress.active:
        return Outcome(status=RLJobStatus(settings=recorded))
    image = job.spec.image or context.config.runtime_image
    if context.has_coordinator and recorded is not None:
        image = recorded.image or image
    now = AttemptSettings(generation=Identity.of(job).generation, fingerprint=context.observed.spec_hash, image=image)
    is_edited = recorded is not None and recorded.generation != now.generation
    events = () if not (is_edited and waits_for_next_attempt(job.spec.image, now)) else (_image_deferred(context),)
    return Outcome(status=RLJobStatus(settings=now), events=events)


def waits_for_next_attempt(image: str | None, settings: AttemptSettings | None) -> bool:
    """Return whether the attempt runs with another image than the spec names: the only change of pods that waits.

    Others are refused while the job runs. A new default of the operator's is no change by the user.
    """
    return image is not None and settings is not None and image != settings.image


def _image_deferred(context: Context) -> Event:
    image, attempt = context.job.spec.image, context.progress.attempt
    message = f"spec.image: {image} {HOW_TO_TAKE_EFFECT}"
    return Event("Normal", EventReason.IMAGE_DEFERRED, message, f"image-{attempt}-{image}")
