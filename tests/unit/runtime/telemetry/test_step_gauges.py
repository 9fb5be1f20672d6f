"""Prometheus sees the last step and the last evaluation of a job, in a bounded number of series."""

import json
from pathlib import Path

from prometheus_client import CollectorRegistry

from longshore_runtime.telemetry.metrics import MetricsWriter
from longshore_runtime.telemetry.step_gauges import MAX_DOMAINS, MAX_NAME_BYTES, StepGauges


def shown(registry: CollectorRegistry) -> dict[str, float]:
    return {sample.labels["name"]: sample.value for family in registry.collect() for sample in family.samples}


def domain(number: int) -> str:
    return f"reward/domain/{number}/mean"


def test_a_value_that_a_step_does_not_have_is_not_shown_as_its_own() -> None:
    registry = CollectorRegistry()
    gauges = StepGauges(registry)
    gauges.show_step({"critic/rewards/mean": 0.5, "repurpose/saved_s": 3.0})
    assert shown(registry) == {"critic/rewards/mean": 0.5, "repurpose/saved_s": 3.0}
    gauges.show_step({"critic/rewards/mean": 0.6})
    assert shown(registry) == {"critic/rewards/mean": 0.6}
    gauges.show_step({"repurpose/saved_s": 1.0})
    assert shown(registry) == {"repurpose/saved_s": 1.0}


def test_held_out_rewards_are_shown_until_the_next_evaluation() -> None:
    registry = CollectorRegistry()
    gauges = StepGauges(registry)
    gauges.show_evaluation({"val/reward/mean": 0.1, "val/reward/longest_quartile": 0.0})
    gauges.show_step({"critic/rewards/mean": 0.5})
    assert shown(registry)["val/reward/mean"] == 0.1
    gauges.show_evaluation({"val/reward/mean": 0.2})
    assert shown(registry) == {"critic/rewards/mean": 0.5, "val/reward/mean": 0.2}


def test_the_first_domains_are_shown_and_the_others_never() -> None:
    registry = CollectorRegistry()
    gauges = StepGauges(registry)
    gauges.show_step({domain(number): 0.0 for number in range(40)})
    gauges.show_step({domain(number): 1.0 for number in range(30, 90)} | {"perf/throughput": 1.0})
    assert shown(registry) == {"perf/throughput": 1.0} | {domain(number): 1.0 for number in range(30, MAX_DOMAINS)}
    gauges.show_step({domain(number): 2.0 for number in range(80, 1000)} | {domain(3): 2.0})
    assert shown(registry) == {domain(3): 2.0}


def test_a_name_that_is_too_long_is_not_shown() -> None:
    registry, longest = CollectorRegistry(), "ä" * (MAX_NAME_BYTES // 2)
    StepGauges(registry).show_step({longest: 1.0, f"{longest}x": 1.0})
    assert shown(registry) == {longest: 1.0}


def test_a_session_leaves_the_registry_to_the_next_and_files_have_every_domain(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    for _ in range(2):
        metrics = MetricsWriter(tmp_path, registry, tensor_board=False)
        metrics.write(1, {domain(number): 1.0 for number in range(100)})
        metrics.write_evaluation(1, {"val/reward/mean": 0.5})
        assert len(shown(registry)) == MAX_DOMAINS + 1
        metrics.close()
        assert shown(registry) == {}
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [len(row) for row in rows] == [101, 2, 101, 2]
