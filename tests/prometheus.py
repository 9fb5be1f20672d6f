"""A real Prometheus that scrapes what monitors of the chart select, and answers questions about it.

Debian's has no discovery for Kubernetes, so `Prometheus.discover` finds what the monitors select.
"""

import json
import os
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from benchmarks.measured_process import free_port

REQUIRE_PROMETHEUS: Final = "LONGSHORE_REQUIRE_PROMETHEUS"
"""Variable that has tests fail where there is no Prometheus, instead of being skipped."""
needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None and not os.environ.get(REQUIRE_PROMETHEUS),
    reason="there is no Prometheus on this machine: Debian has it as the package prometheus",
)
Json = dict[str, Any]
Values = list[tuple[float, float]]
"""Times and values."""
Get = Callable[..., list[Json]]
"""Arguments of `kubectl get`, and the objects that it finds."""
ALL: Final = ".+"
"""What Grafana writes in place of a variable of which everything is selected."""


@dataclass(frozen=True)
class Prometheus:
    """Its HTTP API."""

    address: str
    folder: Path = Path()

    def discover(self, monitors: Sequence[Json], kubectl: Callable[..., str]) -> None:
        """Have it scrape what the monitors select now, with the labels that the Prometheus operator adds."""

        def get(*arguments: str) -> list[Json]:
            found: list[Json] = json.loads(kubectl("get", *arguments, "--output=json"))["items"]
            return found

        kinds = {"PodMonitor": _pods, "ServiceMonitor": _backends}
        targets = [target for monitor in monitors for target in kinds[monitor["kind"]](monitor, get)]
        new = self.folder / "targets.new"
        new.write_text(json.dumps(targets))
        new.rename(self.folder / "targets.json")

    def is_ready(self) -> bool:
        """Whether it answers."""
        try:
            urllib.request.urlopen(f"{self.address}/-/ready").close()
        except urllib.error.URLError:
            return False
        return True

    def ask(self, path: str, **parameters: str) -> Any:
        """Return the data of an answer."""
        with urllib.request.urlopen(f"{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}") as response:
            return json.load(response)["data"]

    def series(self, target: Json, start_s: float, end_s: float, step_s: float = 1.0) -> list[tuple[str, Values]]:
        """Return the legends and values of what a panel asks for, as Grafana shows them."""
        times = {"start": f"{start_s:.3f}", "end": f"{end_s:.3f}", "step": f"{step_s:g}"}
        found = self.ask("query_range", query=with_all(target["expr"]), **times)["result"]
        return [
            (
                _legend(target["legendFormat"], one["metric"]),
                [(at_s, float(value)) for at_s, value in one["values"]],
            )
            for one in found
        ]


def _legend(text: str, labels: Mapping[str, str]) -> str:
    return re.sub(r"{{(\w+)}}", lambda label: labels[label[1]], text)


def with_all(query: str) -> str:
    """Return a query of a dashboard in whose variables everything is selected."""
    return re.sub(r"\$\w+", ALL, query)


@contextmanager
def prometheus(folder: Path, rules: Json) -> Iterator[Prometheus]:
    """Run one that scrapes every second what `discover` finds; `rules`: spec of a PrometheusRule."""
    (folder / "rules.yaml").write_text(yaml.safe_dump(rules))
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": ["rules.yaml"],
        "scrape_configs": [{"job_name": "found", "file_sd_configs": [{"files": ["targets.json"]}]}],
    }
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    port, log = free_port(), folder / "prometheus.log"
    command = ["prometheus", f"--config.file={folder / 'prometheus.yaml'}", f"--storage.tsdb.path={folder / 'data'}"]
    with log.open("w") as output:
        process = subprocess.Popen(
            [*command, f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"], stdout=output, stderr=output
        )
    shown = Prometheus(f"http://127.0.0.1:{port}", folder)
    try:
        while not shown.is_ready():
            assert process.poll() is None, log.read_text()
            time.sleep(0.1)
        yield shown
    finally:
        process.terminate()
        process.wait(timeout=60)


def _pods(monitor: Json, get: Get) -> Iterator[Json]:
    """What a PodMonitor for all namespaces selects."""
    [endpoint] = monitor["spec"]["podMetricsEndpoints"]
    for pod in get("pods", "--all-namespaces", _selector(monitor), "--field-selector=status.phase=Running"):
        for container in pod["spec"]["containers"]:
            for port in container.get("ports", []):
                if port["name"] == endpoint["port"]:
                    meta, address = pod["metadata"], f"{pod['status']['podIP']}:{port['containerPort']}"
                    yield _target(address, namespace=meta["namespace"], pod=meta["name"], container=container["name"])


def _backends(monitor: Json, get: Get) -> Iterator[Json]:
    """What a ServiceMonitor for its own namespace selects."""
    [endpoint] = monitor["spec"]["endpoints"]
    namespace = monitor["metadata"]["namespace"]
    for service in get("services", f"--namespace={namespace}", _selector(monitor)):
        [target] = [port["targetPort"] for port in service["spec"]["ports"] if port["name"] == endpoint["port"]]
        selector = _labels(service["spec"]["selector"])
        for pod in get("pods", f"--namespace={namespace}", selector, "--field-selector=status.phase=Running"):
            ports = [port for one in pod["spec"]["containers"] for port in one.get("ports", [])]
            [number] = [port["containerPort"] for port in ports if target in (port.get("name"), port["containerPort"])]
            labels = {"pod": pod["metadata"]["name"], "service": service["metadata"]["name"]}
            yield _target(f"{pod['status']['podIP']}:{number}", namespace=namespace, **labels)


def _selector(monitor: Json) -> str:
    return _labels(monitor["spec"]["selector"]["matchLabels"])


def _labels(labels: dict[str, str]) -> str:
    return "--selector=" + ",".join(f"{name}={value}" for name, value in labels.items())


def _target(address: str, **labels: str) -> Json:
    return {"targets": [address], "labels": labels}
