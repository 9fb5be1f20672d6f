"""Supervised steps before the first round, with the trainers of the job: the same weights whatever is lost."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from safetensors.torch import load_file as load_torch_file

from longshore.api.algorithm import Algorithm
from longshore.api.model import BuiltinTask
from longshore.api.runtime_status import WarmStartReport
from longshore.api.training import CheckpointSettings, TrainerBackend, TrainerSettings
from longshore.api.warm_start import WarmStart
from longshore_runtime.backends.sums import GradientSums
from longshore_runtime.backends.tiny_model import build_tiny_model, build_tokenizer
from longshore_runtime.backends.torch_trainer import TorchTrainer
from longshore_runtime.backends.trainer_protocol import Sample, TrainResult
from longshore_runtime.backends.trainer_spec import TrainerSpec
from longshore_runtime.checkpoints.origin import MODEL, WARM_START, Origin, warm_start_origin
from longshore_runtime.checkpoints.tensor_types import TensorTypes
from longshore_runtime.clock import SystemClock
from longshore_runtime.cluster.worker_imports import WorkerImports
from longshore_runtime.data.supervised import ExchangesOf
from longshore_runtime.errors import Interrupted, UserError
from longshore_runtime.places import Place
from longshore_runtime.session.warm_start import WarmStartParts, WarmStartRun, trainer_spec
from longshore_runtime.stop import Stop
from longshore_runtime.storage import JobStorage
from longshore_runtime.tasks.curriculum import demonstrated
from longshore_runtime.trainer.acceptance import require_trainable
from longshore_runtime.trainer.group import TrainerGroup, step_denominator
from longshore_runtime.trainer.saved_by import sign
from tests.ray_pods import worker_pods

IMPORTS = WorkerImports(("longshore_runtime.backends.torch_trainer",), {"OMP_NUM_THREADS": "1"})
STEPS = 6
ALGORITHM = Algorithm(steps=1, prompts_per_step=2, responses_per_prompt=2, max_response_tokens=8)
SETTINGS = WarmStart(steps=STEPS, rows_per_step=8, learning_rate=4e-3, warmup_steps=2)
TINY = Origin("model.builtin", "Tiny", "Tiny")


@dataclass
class Reports:
    """What was reported."""

    steps: list[WarmStartReport] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)

    def warm_start(self, report: WarmStartReport) -> None:
        self.steps.append(report)

    def progress(self, *progress: object) -> None: ...

    def notice(self, reason: str, message: str) -> None:
        self.notices.append(message)


class Local:
    """A trainer in this process in the place of a group of them."""

    def __init__(self, storage: JobStorage, spec: TrainerSpec) -> None:
        self._storage = storage
        self._spec = spec
        self._trainer = TorchTrainer(storage.resolve("tiny"), spec.options)

    def train(self, samples: Sequence[Sample]) -> TrainResult:
        sums, denominator = self._trainer.accumulate(samples), step_denominator(samples, self._spec.options)
        return TrainResult(sums, self._trainer.update(denominator), denominator)

    def begin_save(self, directory: str, **limit: float) -> Callable[[], None]:
        path = self._storage.resolve(directory)
        sign(path, TrainerBackend.TORCH)
        return self._trainer.begin_save(path)

    def load(self, directory: str) -> None:
        self._trainer.load(self._storage.resolve(directory))

    def policy_version(self) -> int:
        return self._trainer.policy_version

    def stop(self) -> None:
        """End with this process."""


@dataclass
class Job:
    """A job with one replica, whose output is a directory of the storage."""

    root: Path
    name: str
    settings: WarmStart = SETTINGS
    on_step: Callable[[int, Stop], object] = lambda step, stop: None
    cache: str | None = None
    model: Origin = TINY
    types: TensorTypes = field(default_factory=TensorTypes)
    reports: Reports = field(default_factory=Reports)
    start: Callable[[JobStorage, TrainerSpec], Any] = Local

    @property
    def storage(self) -> JobStorage:
        return JobStorage(self.root, self.name)

    def run(self) -> str:
        stop, reports, storage = Stop(), self.reports, self.storage
        spec = trainer_spec(ALGORITHM, self.settings, TrainerSettings())
        of_step = demonstrated(BuiltinTask.COUNTING, self.settings, 0, build_tokenizer())

        def exchanges_of() -> ExchangesOf:
            def watched(step: int) -> Any:
                self.on_step(step, stop)
                return of_step(step)

            return watched

        parts = WarmStartParts(
            start_trainers=lambda: self.start(storage, spec),
            exchanges_of=exchanges_of,
            origins={MODEL: self.model, WARM_START: warm_start_origin(self.settings, BuiltinTask.COUNTING)},
            storage=storage,
            recorder=reports,  # type: ignore[arg-type]
            stop=stop,
            clock=SystemClock(),
            checkpoint=CheckpointSettings(),
            require_own=lambda: None,
            types=self.types,
            tensor_board=False,
            cache=self.cache,
        )
        return WarmStartRun(self.settings, parts).run()

    def weights(self, result: str) -> dict[str, Any]:
        return load_file(self.storage.resolve(result) / "model.safetensors")

    def metrics(self) -> list[dict[str, float]]:
        lines = (self.storage.output_dir / "warm-start" / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A storage with the model."""
    storage = tmp_path_factory.mktemp("storage")
    build_tiny_model(storage / "tiny", seed=0)
    return storage


@pytest.fixture(scope="module")
def whole(root: Path) -> tuple[Job, str]:
    """A warm start that nothing interrupts."""
    job = Job(root, "whole")
    return job, job.run()


def equal(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all((one[name] == other[name]).all() for name in one)


def test_a_warm_start_learns_and_reports_every_step(whole: tuple[Job, str]) -> None:
    job, result = whole
    lines = job.metrics()
    assert [line["step"] for line in lines] == [*range(1, STEPS + 1)]
    assert lines[0]["warm_start/loss"] == pytest.approx(math.log(128), rel=0.05), "of a model that knows nothing"
    assert lines[-1]["warm_start/loss"] < 0.8 * lines[0]["warm_start/loss"]
    last = job.reports.steps[-1]
    assert (last.step, last.loss) == (STEPS, pytest.approx(lines[-1]["warm_start/loss"], abs=1e-4))
    files = {path.name for path in job.storage.resolve(result).iterdir()}
    assert {"config.json", "tokenizer.json", "model.safetensors"} <= files
    assert not files & {"optimizer", "trainer.pt"}


def test_a_stopped_warm_start_goes_on_at_its_step_with_the_same_result(root: Path, whole: tuple[Job, str]) -> None:
    asked: list[int] = []

    def stop_once(step: int, stop: Stop) -> None:
        if step == 4 and not asked:
            asked.append(step)
            stop.ask()

    job = Job(root, "stopped", on_step=stop_once)
    with pytest.raises(Interrupted):
        job.run()
    again: list[int] = []
    other = replace(job, on_step=lambda step, stop: again.append(step))
    result = other.run()
    assert again == [5, 6], "step 4 had begun, and its weights were saved"
    assert equal(other.weights(result), whole[0].weights(whole[1]))
    assert [line["step"] for line in other.metrics()] == [*range(1, STEPS + 1)]
    assert not (job.storage.output_dir / "warm-start" / "checkpoints").exists()


def test_checkpoints_of_another_warm_start_are_refused(root: Path) -> None:
    job = Job(root, "other", on_step=lambda step, stop: stop.ask())
    with pytest.raises(Interrupted):
        job.run()
    with pytest.raises(
        UserError, match=r"algorithm\.warmStart: the checkpoint of step 1 in storage\.output belongs to"
    ):
        replace(job, settings=SETTINGS.model_copy(update={"steps": STEPS + 1})).run()


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"settings": SETTINGS.model_copy(update={"steps": STEPS + 1})}, "algorithm.warmStart"),
        ({"model": Origin("model.path", "other", "other")}, "model.path"),
    ],
)
def test_the_result_of_another_warm_start_is_refused(
    changes: dict[str, Any], field: str, whole: tuple[Job, str]
) -> None:
    job, result = whole
    assert job.run() == result, "that of the same one is used"
    with pytest.raises(UserError, match=rf"{field}: the checkpoint of step {STEPS} in storage\.output belongs to"):
        replace(job, **changes).run()


def test_a_damaged_result_is_named_with_what_to_do(root: Path) -> None:
    job = Job(root, "damaged")
    directory = job.storage.output_dir / "warm-start" / "model"
    directory.mkdir(parents=True)
    for content in ("", "{}", '{"report": {}, "origins": {"model": 1}}'):
        (directory / "warm_start.json").write_text(content)
        with pytest.raises(UserError, match=r"damaged/warm-start/model is damaged \(.*remove that directory"):
            job.run()


def test_the_result_has_the_types_of_the_model_before(root: Path, whole: tuple[Job, str]) -> None:
    exact = whole[0].weights(whole[1])
    job = Job(root, "narrow", types=TensorTypes(dict.fromkeys(exact, "BF16")))
    directory = job.storage.resolve(job.run())
    assert json.loads((directory / "config.json").read_text())["dtype"] == "bfloat16"
    stored = load_torch_file(directory / "model.safetensors")
    for name, values in exact.items():
        assert torch.equal(stored[name], torch.from_numpy(values).bfloat16())


def test_losses_that_diverge_blame_the_rate_of_the_warm_start() -> None:
    spec = trainer_spec(ALGORITHM, SETTINGS, TrainerSettings())
    with pytest.raises(UserError, match=r"^algorithm\.warmStart\.learningRate: the loss is nan"):
        require_trainable([GradientSums(loss=math.nan)], None, spec.options.learning_rate_field)


@pytest.mark.parametrize("prompts_per_update", [None, 1])
def test_moments_leave_the_gpu_as_in_the_rounds(prompts_per_update: int | None) -> None:
    algorithm = ALGORITHM.model_copy(update={"prompts_per_update": prompts_per_update})
    imitating = trainer_spec(algorithm, SETTINGS, TrainerSettings(), is_colocated=True)
    rounds = TrainerSpec.of(algorithm, TrainerSettings(), 1, is_colocated=True)
    assert imitating.options.offload_moments == rounds.options.offload_moments == (prompts_per_update is None)


def test_jobs_share_a_warm_start_by_demonstrations(root: Path, whole: tuple[Job, str]) -> None:
    one, other = (Job(root, name, cache="cache/same") for name in ("first", "second"))
    assert one.run() == other.run() == "cache/same"
    assert equal(one.weights("cache/same"), whole[0].weights(whole[1]))
    assert [(report.step, report.cached) for report in other.reports.steps] == [(STEPS, True)]


def test_a_lost_pod_costs_no_step_of_a_warm_start(root: Path, whole: tuple[Job, str]) -> None:
    with worker_pods(root, 1, IMPORTS) as pods:

        def lose(step: int, stop: Stop) -> None:
            if step == 3:
                pods.leave(0)
                pods.join(0)

        def start(storage: JobStorage, spec: TrainerSpec) -> TrainerGroup:
            return TrainerGroup([Place(0, ())], spec, "tiny", storage.output)

        job = Job(root, "lost", on_step=lose, start=start)
        found, wanted = job.weights(job.run()), whole[0].weights(whole[1])
    assert all(np.allclose(found[name], wanted[name], atol=1e-5) for name in wanted)
    assert len(job.reports.notices) == 1
