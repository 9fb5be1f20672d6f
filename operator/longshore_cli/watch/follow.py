"""Follow a job until it is finished."""

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError
from typing import Final

from rich.console import Console

from longshore_cli.errors import CliError
from longshore_cli.watch import claims, history
from longshore_cli.watch.history import JobChange, WatchHistory
from longshore_cli.watch.screen import screen_for
from longshore_client.errors import ClientError
from longshore_client.kube import Change, Kube
from longshore_client.view import JobView, event_view, job_view
from longshore_kube.errors import ApiError, KubeError
from longshore_kube.resources import EVENTS, Json

Item = tuple[str, str, Json]
"""Which watch, what happened, to which object."""
_TICK_S: Final = 5.0
"""Seconds without a change after which a watch looks at the clock, for a step whose status stays the same."""


def follow(kube: Kube, name: str, console: Console, clock: Callable[[], float] = time.monotonic) -> WatchHistory:
    """Show the job until it is finished; return what was seen.

    Raises:
        CliError: there is no such job, or it was deleted meanwhile.
    """
    job = kube.job(name)
    view = job_view(job)
    seen = history.begin(view, clock())
    with screen_for(console, seen, clock) as screen:
        if view.is_finished:
            at = f" at {view.status.completion_time}" if view.status.completion_time else ""
            screen.job(seen, (JobChange(f"ended{at}; to run it again, delete it and submit its file again"),))
            return seen
        screen.job(seen, history.opening(view))
        for source, kind, item in _merged(_watches(kube, job, view)):
            if source == "tick":
                seen, lines = history.advance(seen, seen.view, clock())
                screen.job(seen, lines)
                continue
            if source in ("event", "claim"):
                if kind != "DELETED":
                    screen.event(event_view(item))
                continue
            if kind == "DELETED":
                raise CliError(f"The RLJob {name!r} was deleted.")
            seen, lines = history.advance(seen, job_view(item), clock())
            screen.job(seen, lines)
            if seen.view.is_finished:
                break
    return seen


def _watches(kube: Kube, job: Json, view: JobView) -> Mapping[str, Iterator[Change]]:
    claim = claims.claim_name(job)
    return {
        "job": kube.watch(kube.jobs_path(), f"metadata.name={view.name}", known=[job]),
        "event": _if_allowed(_events(kube, view.uid)),
        "claim": _if_allowed(("ADDED", trouble.as_event()) for trouble in claims.troubles(kube, claim)),
    }


def _events(kube: Kube, uid: str) -> Iterator[Change]:
    """Yield the events about a job in the order of time. An API server lists them by name, which is random."""
    path, fields = EVENTS.path(kube.namespace), f"involvedObject.uid={uid}"
    existing = sorted(kube.items(path, fields=fields), key=lambda event: event_view(event).time)
    yield from (("ADDED", event) for event in existing)
    yield from kube.watch(path, fields, known=existing)


def _if_allowed(changes: Iterator[Change]) -> Iterator[Change]:
    """Yield the changes, or nothing where the user may not read them: the job may still be watched."""
    try:
        yield from changes
    except ApiError as error:
        if error.code != 403:
            raise


def _merged(watches: Mapping[str, Iterator[Change]]) -> Iterator[Item]:
    """Yield changes of several watches in the order of arrival, and ticks between them; an error of one ends all."""
    arrived: queue.SimpleQueue[Item | Exception] = queue.SimpleQueue()
    is_over = threading.Event()

    def pump(source: str, changes: Iterator[Change]) -> None:
        try:
            for kind, item in changes:
                if is_over.is_set():
                    return
                arrived.put((source, kind, item))
        except (ClientError, KubeError) as error:
            arrived.put(error)
        except CancelledError:
            return  # The client was closed, as it is at the end of a command: nobody reads `arrived` any more.

    for source, changes in watches.items():
        threading.Thread(target=pump, args=(source, changes), name=f"watch-{source}", daemon=True).start()
    try:
        while True:
            try:
                item = arrived.get(timeout=_TICK_S)
            except queue.Empty:
                item = ("tick", "", {})
            if isinstance(item, Exception):
                raise item
            yield item
    finally:
        is_over.set()
