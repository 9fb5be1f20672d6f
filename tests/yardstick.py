"""How fast the machine is while tests run: the CPU time of a fixed piece of work, measured again and again.

The same tests take 1,600 CPU seconds on one machine and more than twice as many on another, and a machine whose cores
are shared has fast and slow hours.
"""

import json
import threading
import time
from statistics import fmean
from typing import Any, Final

EVERY_S: Final = 10.0
_ROUNDS: Final = 300


class Yardstick:
    """Measures in a thread, once at the beginning and then every few seconds."""

    def __init__(self) -> None:
        self._measured_s: list[float] = [measured_s()]
        self._ended = threading.Event()
        threading.Thread(target=self._measure, name="yardstick", daemon=True).start()

    @property
    def mean_s(self) -> float:
        """CPU seconds of the work, on average so far."""
        return fmean(self._measured_s)

    def stop(self) -> None:
        """End the thread."""
        self._ended.set()

    def _measure(self) -> None:
        while not self._ended.wait(EVERY_S):
            self._measured_s.append(measured_s())


def measured_s() -> float:
    """Do the work, which is as mixed as that of tests; return its CPU time."""
    started_s = time.thread_time()
    text = json.dumps({str(number): [number, {"square": number * number}] for number in range(100)})
    for _ in range(_ROUNDS):
        values: dict[str, Any] = json.loads(text)
        assert sum(value[1]["square"] for value in values.values()) == 328_350
        assert len(sorted(values, key=lambda key: (len(key), key))) == 100
    return time.thread_time() - started_s
