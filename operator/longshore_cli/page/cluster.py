"""What the API server knows of a job, for its page."""

from collections.abc import Iterable
from typing import Final

from longshore.page.view import ClusterView, ConditionView, PageEvent
from longshore_client.kube import Kube
from longshore_client.view import event_view, job_view, newest_events
from longshore_kube.errors import ApiError
from longshore_kube.resources import EVENTS, Json

_MAX_EVENTS: Final = 200


def read_cluster(kube: Kube, name: str) -> ClusterView:
    """Return a job with its events, read with the rights of the user who asks.

    Raises:
        CliError: there is no such job.
    """
    job = kube.job(name)
    return cluster_view(job, read_events(kube, job["metadata"]["uid"]))


def read_events(kube: Kube, uid: str) -> list[Json] | None:
    """Return events about an object; None: they may not be read."""
    try:
        return kube.items(EVENTS.path(kube.namespace), fields=f"involvedObject.uid={uid}")
    except ApiError as error:
        if error.code != 403:
            raise
        return None


def cluster_view(job: Json, events: Iterable[Json] | None) -> ClusterView:
    """Return an RLJob and its events as the page shows them."""
    view = job_view(job)
    status = view.status
    return ClusterView(
        name=view.name,
        phase=view.phase.value,
        is_finished=view.is_finished,
        attempt=status.attempt,
        failures=status.failures,
        gpus={"rollout": status.gpus.rollout, "trainer": status.gpus.trainer, "judge": status.gpus.judge},
        conditions=tuple(
            ConditionView(
                type=one.type,
                status=one.status.value,
                reason=one.reason,
                message=one.message,
                time=one.last_transition_time,
            )
            for one in status.conditions
        ),
        events=None if events is None else _events(events),
    )


def _events(events: Iterable[Json]) -> tuple[PageEvent, ...]:
    found = list(events)
    counts = {event["metadata"].get("uid", ""): _count(event) for event in found}
    newest = newest_events(map(event_view, found), _MAX_EVENTS)
    return tuple(
        PageEvent(time=one.time, type=one.type, reason=one.reason, message=one.message, count=counts[one.uid])
        for one in newest
    )


def _count(event: Json) -> int:
    return int((event.get("series") or {}).get("count") or event.get("count") or 1)
