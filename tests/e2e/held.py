"""Jobs that wait for their test: they do not end before it has done what it wants with them."""

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.contract.rewards.endpoint import Reply, serving
from tests.e2e.jobs import Json


@contextmanager
def held(manifest: Json, num_scored: int) -> Iterator[threading.Event]:
    """Give a job that is applied within the block so many scores, evaluations included, and more while an event is set.

    Its rewards stay the same: a function is added that scores 0.
    """
    goes_on, numbers = threading.Event(), itertools.count()

    def score(path: str, body: Json) -> Reply:
        if next(numbers) >= num_scored:
            goes_on.wait()
        return Reply(body={"reward": 0})

    with serving(score) as service:
        gate = {"name": "gate", "kind": "HTTP", "http": {"url": service.address}, "timeoutSeconds": 3600}
        reward = manifest["spec"]["reward"]
        manifest["spec"]["reward"] = {**reward, "functions": [*reward["functions"], gate]}
        try:
            yield goes_on
        finally:
            goes_on.set()
