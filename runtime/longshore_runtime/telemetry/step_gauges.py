"""Show the steps of a job to Prometheus: one gauge, whose series are bounded however many domains the data has."""

from collections.abc import Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Gauge

MAX_DOMAINS: Final = 64
MAX_NAME_BYTES: Final = 256
_DOMAIN: Final = "reward/domain/"


class StepGauges:
    """The gauge `longshore_step_metric`, with the values of the last step and those of the last evaluation.

    A metric that the last step does not have has no series, so that nobody takes an older value for its own. Of the
    domains of rewards, the first `MAX_DOMAINS` are shown, and no name that is longer than `MAX_NAME_BYTES`: Prometheus
    keeps every series that it has ever seen, and the chart's PodMonitor has it refuse a coordinator with more.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._gauge = Gauge("longshore_step_metric", "Metric of the last training step", ["name"], registry=registry)
        self._of_step: frozenset[str] = frozenset()
        self._of_evaluation: frozenset[str] = frozenset()
        self._domains: set[str] = set()

    def show_step(self, values: Mapping[str, float]) -> None:
        """Show the values of a step in place of those of the step before."""
        self._of_step = self._show(values, self._of_step)

    def show_evaluation(self, values: Mapping[str, float]) -> None:
        """Show the values of an evaluation until the next one: most steps have none."""
        self._of_evaluation = self._show(values, self._of_evaluation)

    def close(self) -> None:
        """Leave the registry to the next session."""
        self._registry.unregister(self._gauge)

    def _show(self, values: Mapping[str, float], before: frozenset[str]) -> frozenset[str]:
        shown = frozenset(name for name in values if self._is_shown(name))
        for name in shown:
            self._gauge.labels(name=name).set(values[name])
        for name in before - shown:
            self._gauge.remove(name)
        return shown

    def _is_shown(self, name: str) -> bool:
        if len(name.encode(errors="replace")) > MAX_NAME_BYTES:
            return False
        if name.startswith(_DOMAIN) and len(self._domains) < MAX_DOMAINS:
            self._domains.add(name)
        return not name.startswith(_DOMAIN) or name in self._domains
