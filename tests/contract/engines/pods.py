"""The engine pool of a job, with all that the driver hears of it."""

import queue
import re
from dataclasses import dataclass, field

import pytest
import ray

from longshore_runtime.backends.engine_protocol import Completion, Request
from longshore_runtime.rollout.engine_pool import EnginePool
from longshore_runtime.rollout.events import EngineOutput, Event
from tests.contract.engines.harness import request

LIMIT_S = 120.0


@dataclass
class Job:
    """A pool, the driver's events, and what people are shown."""

    pool: EnginePool
    events: "queue.SimpleQueue[Event]"
    notices: list[tuple[str, str]] = field(default_factory=list)

    def lose(self, engine: int) -> None:
        """An engine's process dies."""
        ray.kill(self.pool._fleet[engine]._actor)

    def wait_lost(self, engine: int) -> None:
        """Until the pool knows that an engine is gone."""
        handle = self.pool._fleet[engine]
        while not handle.ended:
            with pytest.raises(queue.Empty):
                self.events.get(timeout=0.05)

    def wait_noticed(self, count: int = 1) -> None:
        """Until so many notices were given: that of a death follows when the pod has told its cause."""
        while len(self.notices) < count:
            with pytest.raises(queue.Empty):
                self.events.get(timeout=0.05)

    def assert_noticed_death(self, engine: int, worker: int) -> None:
        """The only notice is that the process of an engine ended, and how; none is still on its way."""
        self.wait_noticed()
        for search in self.pool._notices._searches:
            search.join(LIMIT_S)
        ((reason, message),) = self.notices
        assert reason == "EngineLost"
        ended = rf"engine {engine} \(worker {worker}\) exited with code 1 after using \d+\.\d GiB"
        assert re.fullmatch(ended, message), message

    def wait_started(self, engine: int) -> None:
        """Until an engine is there again, with or without weights."""
        while not self.pool._fleet[engine].alive:
            with pytest.raises(queue.Empty):
                self.events.get(timeout=0.05)

    def next_event(self) -> Event:
        """Whatever happens next, apart from responses."""
        while isinstance(event := self.events.get(timeout=LIMIT_S), EngineOutput):
            pass
        return event

    def finish(self, engine: int, wanted: Request) -> Completion:
        """The response of an engine to a request."""
        self.pool.add(engine, [wanted])
        return self.next_response(engine)

    def next_response(self, engine: int) -> Completion:
        """The next thing that happens, which must be the end of a response on this engine."""
        event = self.events.get(timeout=LIMIT_S)
        assert isinstance(event, EngineOutput), event
        assert event.engine == engine
        (completion,) = event.completions
        return completion

    def samples(self, engine: int, policy_version: int) -> None:
        """It takes a request and answers with tokens of this policy version."""
        completion = self.finish(engine, request(max_tokens=3))
        assert [run.policy_version for run in completion.trajectory.runs] == [policy_version]
