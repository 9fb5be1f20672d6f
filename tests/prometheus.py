"""A real Prometheus that finds and scrapes what monitors of the chart select, and answers questions about it."""

import json
import os
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
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
_KINDS: Final = {
    "PodMonitor": ("pod", "podMetricsEndpoints", "pod", "pod_container_port_name"),
    "ServiceMonitor": ("endpoints", "endpoints", "service", "endpoint_port_name"),
}
"""What Prometheus discovers for a monitor, its list of ports, whose labels it selects, and where the port is named."""
ALL: Final = ".+"
"""What Grafana writes in place of a variable of which everything is selected."""


@dataclass(frozen=True)
class Prometheus:
    """Its HTTP API."""

    address: str

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
                re.sub(r"{{(\w+)}}", lambda label, labels=one["metric"]: labels[label[1]], target["legendFormat"]),
                [(at_s, float(value)) for at_s, value in one["values"]],
            )
            for one in found
        ]


def with_all(query: str) -> str:
    """Return a query of a dashboard in whose variables everything is selected."""
    return re.sub(r"\$\w+", ALL, query)


@contextmanager
def prometheus(folder: Path, monitors: Sequence[Json], kubeconfig: Path, rules: Json) -> Iterator[Prometheus]:
    """Run one with what the Prometheus operator makes of its objects; `rules`: spec of a PrometheusRule."""
    (folder / "rules.yaml").write_text(yaml.safe_dump(rules))
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": ["rules.yaml"],
        "scrape_configs": [_scrape_config(one, kubeconfig) for one in monitors],
    }
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    port, log = free_port(), folder / "prometheus.log"
    command = ["prometheus", f"--config.file={folder / 'prometheus.yaml'}", f"--storage.tsdb.path={folder / 'data'}"]
    with log.open("w") as output:
        process = subprocess.Popen(
            [*command, f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"], stdout=output, stderr=output
        )
    shown = Prometheus(f"http://127.0.0.1:{port}")
    try:
        while not shown.is_ready():
            assert process.poll() is None, log.read_text()
            time.sleep(0.1)
        yield shown
    finally:
        process.terminate()
        process.wait(timeout=60)


def _scrape_config(monitor: Json, kubeconfig: Path) -> Json:
    """Return what the Prometheus operator makes of a monitor with one endpoint."""
    role, endpoints, selected, port_name = _KINDS[monitor["kind"]]
    spec, meta = monitor["spec"], monitor["metadata"]
    [endpoint] = spec[endpoints]
    namespaces = spec.get("namespaceSelector", {"matchNames": [meta["namespace"]]})
    prefix = "__meta_kubernetes"
    keep = {f"{selected}_label_{_label(name)}": value for name, value in spec["selector"]["matchLabels"].items()}
    shown = {"namespace": "namespace", "pod": "pod_name", "container": "pod_container_name", "service": "service_name"}
    return {
        "job_name": f"{monitor['kind']}/{meta['namespace']}/{meta['name']}/0",
        "kubernetes_sd_configs": [
            {
                "role": role,
                "kubeconfig_file": str(kubeconfig),
                "namespaces": {"names": namespaces.get("matchNames", [])},
            }
        ],
        "relabel_configs": [
            {"source_labels": [f"{prefix}_pod_phase"], "regex": "Failed|Succeeded", "action": "drop"},
            *(
                {"source_labels": [f"{prefix}_{name}"], "regex": value, "action": "keep"}
                for name, value in {**keep, port_name: endpoint["port"]}.items()
            ),
            *({"source_labels": [f"{prefix}_{name}"], "target_label": label} for label, name in shown.items()),
            {"target_label": "endpoint", "replacement": endpoint["port"]},
        ],
    }


def _label(name: str) -> str:
    """Return the name of a label as Prometheus spells it."""
    return "".join(letter if letter.isalnum() else "_" for letter in name)
