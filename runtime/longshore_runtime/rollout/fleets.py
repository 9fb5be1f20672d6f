"""Fleets of any size. One that is not in use is kept asleep, which makes the way back to its size quick."""

import itertools
from collections.abc import Callable

from longshore.api.pods import Workers
from longshore_runtime.backends.engine_spec import EngineSpec
from longshore_runtime.places import Places, engine_places
from longshore_runtime.rollout.engine_notices import EngineNotices
from longshore_runtime.rollout.events import Event
from longshore_runtime.rollout.fleet import Fleet
from longshore_runtime.rollout.remote_engine import EngineHandle


class Fleets:
    """Begins to start fleets. All engines of a job have different numbers. Not thread-safe."""

    def __init__(
        self,
        workers: Workers,
        spec: EngineSpec,
        model: str,
        output: str,
        notices: EngineNotices,
        on_event: Callable[[Event], None],
    ) -> None:
        self._workers = workers
        self._spec = spec
        self._model, self._output = model, output
        self._notices = notices
        self._on_event = on_event
        self._numbers = itertools.count()
        self._parked: Fleet | None = None

    def new(self, tp_size: int) -> Fleet:
        """Begin to start engines of this size in all worker pods."""
        spec = self._spec.regrouped(tp_size)

        def start(places: Places, engine: int | None) -> EngineHandle:
            number = next(self._numbers) if engine is None else engine
            handle = EngineHandle(number, places, spec, self._model, self._output, self._on_event)
            self._notices.starts(number, handle.pods, handle.find_death)
            return handle

        return Fleet(tp_size, engine_places(self._workers, tp_size), start)

    def exchange(self, fleet: Fleet, tp_size: int) -> Fleet:
        """Keep a sleeping fleet, and return one of another size. A kept one of a third size ends."""
        parked, self._parked = self._parked, fleet
        if parked is not None and parked.tp_size == tp_size:
            return parked
        if parked is not None:
            parked.stop()
        return self.new(tp_size)

    def take_back(self) -> None:
        """Give up the fleet that is kept: it is in use again."""
        self._parked = None

    def stop(self) -> None:
        """End the fleet that is kept, if any."""
        if self._parked is not None:
            self._parked.stop()
