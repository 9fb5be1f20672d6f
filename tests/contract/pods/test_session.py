"""A session prepares in the order in which mistakes cost least.

It reads files first, and starts nothing for a job that cannot work.
"""

import errno
import itertools
import queue
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from prometheus_client import CollectorRegistry

from longshore.api import contract
from longshore.api.names import Component, default_output
from longshore.api.runtime_status import Progress, ProgressUnit, RuntimeActivity, RuntimeStatus
from longshore.api.spec import RLJobSpec
from longshore.api.training import TrainerBackend
from longshore.policy.training_alarms import AlarmState
from longshore_runtime.checkpoints.run_state import RunState
from longshore_runtime.checkpoints.store import CheckpointStore
from longshore_runtime.errors import Interrupted, UserError
from longshore_runtime.rollout.fleet import FleetStart
from longshore_runtime.session.session import Session
from longshore_runtime.settings import Settings
from longshore_runtime.stop import Stop
from longshore_runtime.trainer.saved_by import sign
from tests.addresses import network
from tests.checkpoints import write_checkpoint
from tests.hub_server import Repository, hub_server


class Sink:
    """Where the status goes."""

    def __init__(self) -> None:
        self.activities: list[RuntimeActivity | None] = []
        self.progress: queue.SimpleQueue[Progress] = queue.SimpleQueue()

    def report(self, status: RuntimeStatus) -> None:
        self.activities.append(status.activity)
        if status.progress is not None:
            self.progress.put(status.progress)

    def close(self) -> None:
        """Nothing to close."""


class NoAssignments:
    """An operator that asks for nothing; the second of two reward pods is there."""

    def address_of(self, component: Component, index: int) -> str | None:
        return "10.0.0.7" if index == 1 else None

    def close(self) -> None:
        """Nothing to close."""


@pytest.fixture
def storage(model: Path, tmp_path: Path) -> Iterator[Path]:
    shutil.copytree(model, tmp_path / "models" / "tiny")
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"prompt": "{n}+1", "answer": "{n + 1}"}}\n' for n in range(8)))
    yield tmp_path
    assert not ray.is_initialized(), "a job that cannot work starts nothing"


def session(storage: Path, sink: Sink, **changes: Any) -> Session:
    spec = {
        "model": {"path": "models/tiny", "maxContextTokens": 256},
        "data": {"path": "rows.jsonl", "heldOutPrompts": 2},
        "reward": {"functions": [{"name": "maths", "kind": "Maths"}]},
        "algorithm": {"steps": 1, "promptsPerStep": 4, "responsesPerPrompt": 2, "maxResponseTokens": 64},
        "storage": {"claimName": "shared"},
    }
    address = f"{network()}.4.5"
    settings = Settings(
        "demo", "team", "1f0c9a72", 1, Component.COORDINATOR, 0, "demo-coordinator", address, address,
        storage / "spec.json", storage, storage / "why",
    )  # fmt: skip
    stop = changes.pop("stop", Stop())
    first = RuntimeStatus(attempt=1, activity=RuntimeActivity.WAIT_FOR_WORKERS)
    job = RLJobSpec.model_validate(spec | changes)
    assignments: Any = NoAssignments()
    return Session(settings, job, CollectorRegistry(), sink, first, queue.SimpleQueue(), assignments, stop)


def prepared(storage: Path, **changes: Any) -> None:
    sink = Sink()
    try:
        with session(storage, sink, **changes) as one:
            one.build()
    finally:
        assert RuntimeActivity.START_ENGINES not in sink.activities


def publish(storage: Path, step: int, **state: Any) -> Path:
    """Write a checkpoint of the job; return its directory."""
    whole = {"recorder": {}, "rewards": {}, "alarms": AlarmState().export(), "origins": {}, "lengths": {}}
    exported = {"run": RunState(step=step).export(), **whole, **state}
    checkpoints = CheckpointStore(storage / default_output("demo", "1f0c9a72") / "checkpoints", keep=2)
    return write_checkpoint(
        checkpoints, step, exported, {}, lambda directory: sign(directory, TrainerBackend.TORCH)
    ).path


@pytest.mark.parametrize(
    ("kind", "field", "own"),
    [
        ("model", "model.path", "models/tiny"),
        ("tokenizer", "model.path", "tokenizer of models/tiny"),
        ("data", "data.path", "rows.jsonl"),
    ],
)
def test_a_checkpoint_of_other_inputs_ends_the_preparation_before_anything_starts(
    storage: Path, kind: str, field: str, own: str
) -> None:
    publish(storage, 4, origins={kind: {"field": field, "name": "other", "fingerprint": "0f"}})
    belongs = rf"the checkpoint of step 4 in storage\.output belongs to {field} 'other', not to '{own}'; set it back"
    with pytest.raises(UserError, match=rf"^{field}: {belongs}, or start a new job with another storage\.output$"):
        prepared(storage)


def test_a_damaged_checkpoint_is_reported_and_the_one_before_it_continues(storage: Path) -> None:
    _, damaged = publish(storage, 4), publish(storage, 6)
    (damaged / "state.json").write_text('{"run": {')
    with session(storage, Sink()) as one:
        assert (one.status.step, one.status.checkpoint_step) == (4, 4)
        ((reason, message),) = [(notice.reason, notice.message) for notice in one.status.notices]
    assert reason == "CheckpointDamaged"
    assert message.startswith("the checkpoint of step 6 is damaged: state.json cannot be read")
    assert message.endswith("The job continues from step 4; the rest is in damaged-step-000006")


def cut(storage: Path) -> None:
    path = storage / "models" / "tiny" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:5000])


@pytest.mark.parametrize(
    ("damage", "changes", "message"),
    [
        (cut, {}, r"^model\.path: models/tiny/model\.safetensors is cut off"),
        (
            lambda s: (s / "models" / "tiny" / "tokenizer.json").unlink(),
            {},
            r"^model\.path: 'models/tiny' has no tokenizer",
        ),
        (
            lambda s: (s / "rows.jsonl").write_bytes(b'{"prompt": "a", "answer": "b"}\n{"prompt": "\xe9"}'),
            {},
            r"^rows\.jsonl, line 2: byte 13 \(0xe9\) is not UTF-8",
        ),
        (
            lambda _: None,
            {"model": {"path": "models/tiny", "maxContextTokens": 10_000_000}},
            r"^model\.maxContextTokens: 10000000 exceeds the 2048 tokens of the model; lower it$",
        ),
        (
            lambda _: None,
            {"reward": {"functions": [{"name": "maths", "kind": "Maths", "domains": ["a"]}]},
             "data": {"path": "rows.jsonl", "domainField": "answer"}},
            r"^rows\.jsonl, line \d: no reward function scores domain '2'",
        ),
        (
            lambda _: None,
            {"reward": {"pods": 0, "functions": [{"name": "mine", "kind": "Python", "importPath": "nowhere:score"}]}},
            r"^reward\.functions\[mine\]\.importPath: 'nowhere:score' cannot be imported",
        ),
    ],
)  # fmt: skip
def test_a_mistake_in_a_file_ends_the_preparation_before_anything_starts(
    storage: Path, damage: Callable[[Path], object], changes: dict[str, Any], message: str
) -> None:
    damage(storage)
    with pytest.raises(UserError, match=message):
        prepared(storage, **changes)


def test_fewer_prompts_than_a_step_wants_are_reported(storage: Path) -> None:
    nowhere = {"name": "mine", "kind": "Python", "importPath": "nowhere:score"}
    steps = {"steps": 1, "promptsPerStep": 7, "responsesPerPrompt": 2, "maxResponseTokens": 64}
    with session(storage, Sink(), algorithm=steps, reward={"pods": 0, "functions": [nowhere]}) as one:
        with pytest.raises(UserError, match="importPath"):  # It comes next, so that nothing starts.
            one.build()
        ((reason, message),) = [(notice.reason, notice.message) for notice in one.status.notices]
    assert reason == "FewPrompts"
    assert "6 prompts to train on are fewer than algorithm.promptsPerStep (7)" in message


def test_hub_models_and_data_are_downloaded_first_and_mistakes_name_the_hub_file(
    storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = b'{"prompt": "1+1", "answer": "2"}\n'
    with hub_server() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        hub.models["acme/tiny"] = Repository.of(storage / "models" / "tiny")
        hub.datasets["acme/sums"] = Repository({"train.jsonl": row * 8 + b"{}"})
        changes = {"model": {"hub": "acme/tiny", "maxContextTokens": 256}, "data": {"hub": "acme/sums"}}
        sink = Sink()
        with (
            pytest.raises(UserError, match=r"^acme/sums/train\.jsonl, line 9: no field 'prompt'"),
            session(storage, sink, **changes) as one,
        ):
            one.build()
        reported = [activity for activity, _ in itertools.groupby(sink.activities)]  # Its progress too, if it is slow.
        assert reported == ["Download", "PrepareModel", "Failing"]
        hub.models["acme/tiny"].files["model.safetensors"] = b"cut"
        shutil.rmtree(storage / "rljobs")
        with pytest.raises(UserError, match=r"^model\.hub: acme/tiny/model\.safetensors is cut off"):
            prepared(storage, **changes)


@pytest.mark.parametrize(
    ("error", "reported"),
    [
        (UserError("data.path: no such file"), ["Failing"]),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), ["Failing"]),
        (OSError(errno.ENOSPC, "No space left on device", "/scratch/of/the/node"), []),
        (Interrupted("the pod was asked to stop"), []),
        (RuntimeError("a bug"), []),
    ],
    ids=repr,
)
def test_only_what_ends_the_job_for_good_is_reported_as_its_failure(
    storage: Path, error: Exception, reported: list[str]
) -> None:
    sink = Sink()
    with pytest.raises(type(error)), session(storage, sink):
        raise error
    assert sink.activities == reported


class Starting:
    """In the place of engines and trainers: they have started once it was reported how far they are."""

    tp_size = 1

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self.start = FleetStart(1, 2, {1: 0.4})
        self.reported: list[Progress] = []

    def starting(self) -> FleetStart:
        return self.start

    def wait_for_all(self, check: object = None) -> None:
        self.reported.append(self.sink.progress.get(timeout=60))

    def trainers(self, model: object) -> "Starting":
        self.start = FleetStart(2, 2, {})
        self.wait_for_all()
        while self.reported[-1].done < 2:  # It may have been asked before the engines had started.
            self.wait_for_all()
        return self

    def watch(self, events: object) -> None:
        """Nobody is lost."""


@pytest.mark.parametrize("accelerator", [True, False])
def test_while_engines_and_trainers_start_it_is_reported_how_far_they_are(
    storage: Path, monkeypatch: pytest.MonkeyPatch, accelerator: bool
) -> None:
    """On GPUs that they share, trainers start after the engines."""
    monkeypatch.setattr("longshore_runtime.session.parts_builder.PROGRESS_EVERY_S", 0.001)
    gpus = {"workers": {"replicas": 1, "gpusPerPod": 1}} if accelerator else {}
    sink = Sink()
    with session(storage, sink, **gpus) as one:
        parts: Any = Starting(sink)
        monkeypatch.setattr(one._builder, "_trainers", parts.trainers)
        monkeypatch.setattr(parts, "sleep", lambda: None, raising=False)
        one._builder._engines_and_trainers("models/tiny", parts)
    while not sink.progress.empty():
        parts.reported.append(sink.progress.get())
    engines, trainers = [
        Progress(unit=ProgressUnit.ENGINES, done=1, total=2, detail="engine 1 has read 40% of its weights"),
        Progress(unit=ProgressUnit.ENGINES, done=2, total=2, detail="trainers load the model"),
    ]
    assert trainers in parts.reported
    assert set(map(str, parts.reported)) <= {str(engines), str(trainers)}
    assert (engines in parts.reported) or not accelerator


def test_trainers_and_engines_wait_for_no_pods_once_theirs_was_asked_to_stop(
    storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when their job is deleted: the pods end with it."""

    class Waiting:
        """For a pod, which is when checks are called."""

        def __init__(self, *parts: Any) -> None:
            self.checks = parts[-1] if parts else None

        def wait_for_all(self, check: Callable[[], None]) -> None:
            check()

        def watch(self, events: object) -> None: ...

        def stop(self) -> None: ...

    monkeypatch.setattr("longshore_runtime.session.parts_builder.TrainerGroup", Waiting)
    stop = Stop()
    stop.ask()
    with session(storage, Sink(), stop=stop) as one:
        trainers: Any = one._builder._trainers("models/tiny")
        with pytest.raises(Interrupted):
            trainers.checks.pods()
        monkeypatch.setattr(one._builder, "_trainers", lambda model: trainers)
        engines: Any = Waiting()
        with pytest.raises(Interrupted):
            one._builder._engines_and_trainers("models/tiny", engines)


@pytest.mark.parametrize("waits_for", ["rewards", "environments"])
def test_while_a_job_waits_for_pods_it_is_reported_how_many_are_there(
    storage: Path, monkeypatch: pytest.MonkeyPatch, waits_for: str
) -> None:
    class Waiting:
        def wait_ready(self, limit_s: float) -> None:
            if waits_for == "rewards":
                self._report(RuntimeActivity.WAIT_FOR_REWARD_PODS)

        def rehearse(self, records: object, limit_s: float) -> None:
            self._report(RuntimeActivity.WAIT_FOR_ENVIRONMENT_PODS)

        def _report(self, activity: RuntimeActivity) -> None:
            assert sink.activities[-1] is activity
            reported.append(sink.progress.get(timeout=60))
            raise UserError("that is enough")

    sink, reported = Sink(), list[Progress]()
    parts = "longshore_runtime.session.parts_builder"
    monkeypatch.setattr(f"{parts}.PROGRESS_EVERY_S", 0.001)
    monkeypatch.setattr(f"{parts}.environment_pool", lambda *_: Waiting())
    monkeypatch.setenv(contract.ENV_ENVIRONMENT_TOKENS, str(storage))
    (storage / "world").write_text("token")
    spec: dict[str, Any] = {"reward": {"pods": 2, "functions": [{"name": "maths", "kind": "Maths"}]}}
    if waits_for == "environments":
        world = {"name": "world", "kind": "Python", "importPath": "games:Guess", "pods": {"count": 2}}
        spec |= {"environments": [world]}
    with session(storage, sink, **spec) as one:
        monkeypatch.setattr(one._builder, "_rewards", lambda *_: Waiting())
        with pytest.raises(UserError, match="that is enough"):
            one.build()
    assert reported == [Progress(unit=ProgressUnit.PODS, done=1, total=2)]
