"""Trackers get every step once, wait for a service that is down, and never hold the job up."""

import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from longshore.api import contract
from longshore.api.spec import RLJobSpec
from longshore.api.tracking import Tracking
from longshore_runtime.telemetry.tracker import TrackedRun
from longshore_runtime.telemetry.trackers import TrackerThread, token, trackers
from tests.unit.checks.test_job import SPEC

RUN = TrackedRun("uid", "demo", "project", None, {}, Path())


@dataclass
class Service:
    """Remembers a run; `fails` is asked before every call."""

    fails: Callable[[str], str] = lambda call: ""
    steps: dict[int, Mapping[str, float]] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)

    def start(self, run: TrackedRun) -> int:
        self._call("start")
        return max(self.steps, default=-1)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._call("log")
        self.steps[step] = {**self.steps.get(step, {}), **values}

    def finish(self, *, succeeded: bool) -> None:
        self._call(f"finish {succeeded}")

    def pause(self) -> None:
        self._call("pause")

    def _call(self, name: str) -> None:
        if message := self.fails(name):
            raise ConnectionError(message)
        self.calls.append(name)


def tracked(service: Service, reported: list[str] | None = None, **options: float) -> TrackerThread:
    on_trouble = (reported if reported is not None else []).append
    return TrackerThread("mlflow", lambda: service, RUN, on_trouble, retry_s=0.001, **options)  # type: ignore[arg-type]


def test_a_run_has_all_metrics_of_every_step_and_its_end() -> None:
    service = Service()
    thread = tracked(service)
    for step in range(3):
        thread.log(step, {"a": step})
    thread.log(2, {"val": 1.0, "kl": math.nan})
    thread.close(True)
    assert service.steps == {0: {"a": 0}, 1: {"a": 1}, 2: {"a": 2, "val": 1.0}}, "no service takes NaN"
    assert service.calls[-1] == "finish True"


@pytest.mark.parametrize(("succeeded", "call"), [(None, "pause"), (False, "finish False")])
def test_an_attempt_that_ends_does_not_end_the_run_unless_the_job_has_ended(succeeded: bool | None, call: str) -> None:
    service = Service()
    tracked(service).close(succeeded)
    assert service.calls == ["start", call]


def after_three_steps(service: Service) -> TrackerThread:
    """The tracker of an attempt that continues one of three steps."""
    first = tracked(service)
    for step in range(1, 4):
        first.log(step, {"a": step})
    first.close(None)
    return tracked(service)


def test_steps_that_another_attempt_repeats_keep_their_first_values() -> None:
    service = Service()
    second = after_three_steps(service)
    for step in range(2, 6):
        second.log(step, {"a": -step})
    second.close(True)
    assert service.steps == {1: {"a": 1}, 2: {"a": 2}, 3: {"a": 3}, 4: {"a": -4}, 5: {"a": -5}}


def test_an_evaluation_that_only_a_later_attempt_finishes_is_part_of_the_run() -> None:
    service = Service()
    second = after_three_steps(service)
    for step in range(2, 4):
        second.log(step, {"a": -step})
        second.log(step, {"timing_s/testing": 1.0, "val/reward/mean": 0.7})
    second.close(True)
    assert service.steps == {1: {"a": 1}, 2: {"a": 2}, 3: {"a": 3, "timing_s/testing": 1.0, "val/reward/mean": 0.7}}


def test_a_service_that_comes_back_has_missed_nothing_and_trouble_is_reported_once() -> None:
    failures = iter(["down\nsince noon", "down", "http://me:secret@host is down", "", "down", ""])
    service = Service(lambda call: next(failures, ""))
    reported: list[str] = []
    thread = tracked(service, reported)
    for step in range(3):
        thread.log(step, {"a": step})
    wait_for(lambda: len(service.steps) == 3)
    thread.close(True)
    assert list(service.steps) == [0, 1, 2]
    assert thread.num_lost == 0
    assert reported == ["tracking.mlflow: down; the job continues without it"]


def test_credentials_of_an_address_are_not_shown() -> None:
    reported: list[str] = []
    tracked(Service(lambda call: "http://me:secret@host is down"), reported).close(None)
    assert reported == ["tracking.mlflow: http://host is down; the job continues without it"]


def test_while_a_service_is_down_so_many_steps_wait_and_the_others_are_dropped() -> None:
    is_called, is_up = threading.Event(), threading.Event()

    def fails(call: str) -> str:
        is_called.set()
        return "" if is_up.is_set() else "down"

    service = Service(fails)
    thread = tracked(service, max_waiting=2)
    thread.log(0, {"a": 0})
    is_called.wait()
    for step in range(1, 6):
        thread.log(step, {"a": step})
    assert thread.num_lost == 3
    is_up.set()
    wait_for(lambda: 2 in service.steps)
    thread.close(True)
    assert list(service.steps) == [0, 1, 2]


def test_a_service_that_never_answers_does_not_keep_the_session_from_ending() -> None:
    never = threading.Event()
    service = Service(lambda call: "" if never.wait(60) else "late")
    thread = tracked(service)
    thread.log(0, {"a": 0})
    thread.close(True, limit_s=0.05)
    never.set()


def test_at_the_end_a_service_that_is_down_is_asked_once_and_not_for_every_step() -> None:
    is_called = threading.Event()
    called: list[str] = []

    def fails(call: str) -> str:
        called.append(call)
        is_called.set()
        return "down"

    service = Service(fails)
    thread = TrackerThread("mlflow", lambda: service, RUN, lambda reason: None, retry_s=60.0)
    for step in range(10):
        thread.log(step, {"a": step})
    is_called.wait()
    thread.close(True)
    assert called == ["start", "start"]
    assert thread.num_lost == 11


def test_no_tracker_is_used_unless_it_is_named() -> None:
    assert trackers(Tracking(), RUN, lambda reason: None) == []


def test_a_token_is_read_from_the_file_that_the_operator_mounts(tmp_path: Path) -> None:
    (tmp_path / "wandb").write_text("key\n")
    environment = {contract.ENV_TRACKING_TOKENS: str(tmp_path)}
    assert token("wandb", environment) == "key"
    assert token("mlflow", environment) is None
    assert token("wandb", {}) is None


def wait_for(condition: Callable[[], bool]) -> None:
    """Another thread makes it true."""
    waiting = threading.Event()
    for _ in range(60_000):
        if condition():
            return
        waiting.wait(0.001)
    raise AssertionError("it does not become true")


def test_a_run_is_named_after_its_job_and_shows_its_spec_without_passwords() -> None:
    data = {"path": "a.jsonl"}
    function = {"name": "service", "kind": "HTTP", "http": {"url": "http://me:secret@grader.example/score"}}
    spec = RLJobSpec.model_validate(SPEC | {"data": data, "reward": {"functions": [function]}})
    run = TrackedRun.of(spec.tracking, "demo", "uid-1", Path("out"), spec)
    assert (run.uid, run.name, run.project, run.group) == ("uid-1", "demo", "longshore", None)
    assert run.config["algorithm"]["maxResponseTokens"] == 64
    assert "secret" not in str(run.config)
    named = Tracking(name="seed-1", project="maths", group="seeds")
    assert TrackedRun.of(named, "demo", "uid-1", Path("out"), spec).name == "seed-1"


@pytest.mark.parametrize("containers", ["initContainers", "containers"])
@pytest.mark.parametrize("pods", ["workers", "coordinator", "reward"])
def test_a_run_shows_names_but_no_values_of_variables_of_pod_templates(pods: str, containers: str) -> None:
    variables = [{"name": "HF_TOKEN", "value": "hf_s3cret"}, {"name": "PIN", "value": 271828}]
    template = {"spec": {containers: [{"name": "longshore", "image": "own:1", "env": variables}]}}
    spec = RLJobSpec.model_validate(SPEC | {pods: SPEC.get(pods, {}) | {"template": template}})
    config = TrackedRun.of(spec.tracking, "demo", "uid-1", Path("out"), spec).config
    (shown,) = config[pods]["template"]["spec"][containers]
    assert (shown["name"], shown["image"]) == ("longshore", "own:1")
    assert [one["name"] for one in shown["env"]] == ["HF_TOKEN", "PIN"]
    assert "s3cret" not in str(config) and "271828" not in str(config)
