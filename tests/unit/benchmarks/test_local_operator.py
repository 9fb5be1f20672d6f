"""The stand-in for the operator asks what the operator would, and tells the driver once."""

import queue
from typing import Any

import pytest
from benchmarks.local_operator import LocalOperator

from longshore.api.round_status import PodLoad, RepurposingBenefit, RolloutLoad, RoundKind, RoundStatus
from longshore.api.runtime_status import RuntimeStatus
from longshore.api.spec import RLJobSpec
from longshore.api.status import Assignment, Overlay
from longshore_runtime.rollout.events import AssignmentChanged, Event


def spec(**repurposing: Any) -> RLJobSpec:
    """Two pods that stream."""
    return RLJobSpec.model_validate(
        {
            "model": {"builtin": "Tiny"},
            "data": {"builtin": "Counting"},
            "algorithm": {"steps": 1, "promptsPerStep": 4, "responsesPerPrompt": 4, "maxResponseTokens": 100},
            "rollout": {"handover": "Streamed", "repurposing": repurposing},
            "reward": {"functions": [{"name": "task", "kind": "Task"}]},
            "workers": {"replicas": 2, "gpusPerPod": 1},
            "storage": {"claimName": "none"},
        }
    )


def at_milestone(number: int = 1, peak_tokens: int = 100) -> RuntimeStatus:
    """What the coordinator tells; the second pod has less to move."""
    pods = [PodLoad(pod=pod, gpus=1, kv_capacity_tokens=1000, running_tokens=80 - 40 * pod) for pod in range(2)]
    load = RolloutLoad(projected_kv_peak_tokens=peak_tokens, pods=pods)
    round_status = RoundStatus(number=number, kind=RoundKind.SHORT, fraction_finished=0.3, load=load)
    pays = RepurposingBenefit(rollout_longer_s=1.0, training_shorter_s=2.0, wanted=True)
    return RuntimeStatus(attempt=1, step=number - 1, round=round_status, repurposing={RoundKind.SHORT: pays})


class Driver:
    """Takes what arrives."""

    def __init__(self, spec: RLJobSpec) -> None:
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.assignments: list[Assignment] = []
        self.operator = LocalOperator(spec, self.events, self.assignments.append)

    def assigned(self) -> list[Assignment]:
        found = []
        while not self.events.empty():
            event = self.events.get()
            assert isinstance(event, AssignmentChanged)
            found.append(event.assignment)
        return found


def test_telemetry_at_a_milestone_is_answered_through_the_events_of_the_driver() -> None:
    driver = Driver(spec())
    before = driver.operator.newest()
    driver.operator.report(at_milestone())
    (assignment,) = driver.assigned()
    assert assignment.epoch == before.epoch + 1
    assert assignment.overlay == Overlay(round=1, attempt=1, trainer_pods=[1])
    assert driver.operator.newest() == assignment
    assert driver.assignments == [assignment]


def test_the_same_telemetry_again_is_not_answered_and_the_next_round_is() -> None:
    driver = Driver(spec())
    for number in (1, 1, 2):
        driver.operator.report(at_milestone(number))
    rounds = [one.overlay.round for one in driver.assigned() if one.overlay is not None]
    assert rounds == [1, 2]


def test_the_baseline_is_there_from_the_beginning_as_for_a_job_that_runs() -> None:
    driver = Driver(spec())
    assert driver.operator.newest().epoch == 1
    assert driver.assigned() == []


@pytest.mark.parametrize(
    ("repurposing", "peak_tokens"),
    [({"trigger": "Never"}, 100), ({"trigger": "Adaptive", "maxKvPeak": 0.5}, 600)],
    ids=["never", "no room"],
)
def test_the_operators_rule_decides(repurposing: dict[str, Any], peak_tokens: int) -> None:
    driver = Driver(spec(**repurposing))
    driver.operator.report(at_milestone(peak_tokens=peak_tokens))
    assert driver.assigned() == []
    assert driver.operator.newest().overlay is None
