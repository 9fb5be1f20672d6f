"""What stand-ins for controllers of others have in common."""

import threading
from abc import ABC, abstractmethod
from typing import Self

from kubernetes.client.exceptions import ApiException

_PERIOD_S = 0.1


class StandIn(ABC):
    """A controller that looks again and again, for as long as the context lasts."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.error: Exception | None = None

    @abstractmethod
    def look(self) -> None:
        """Take every step that is due; what changes or goes meanwhile is looked at again."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30)
        assert self.error is None, repr(self.error)

    def _run(self) -> None:
        while not self._stop.wait(_PERIOD_S):
            try:
                self.look()
            except Exception as error:  # noqa: BLE001 - whatever ends the thread fails the test
                if not (isinstance(error, ApiException) and error.status in (404, 409)):
                    self.error = error
                    return
