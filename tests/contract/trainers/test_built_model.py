"""The built-in model is made on a worker, once for all jobs of a storage."""

import itertools
from pathlib import Path

from longshore.api.model import BuiltinModel, BuiltinTask, Model
from longshore_runtime.cluster.placement import placement
from longshore_runtime.session.initial_model import initial_model
from longshore_runtime.storage import JobStorage
from tests.ray_pods import TRAINERS, Pods, worker_pods

STEPS = 10
MODEL = Model(builtin=BuiltinModel.TINY, warm_start_steps=STEPS, max_context_tokens=512)


def test_a_warm_start_says_how_far_it_is_outlives_its_pod_and_is_done_once(tmp_path: Path) -> None:
    storage = JobStorage(tmp_path, "out")
    reports: list[tuple[int, int]] = []

    def build(pods: Pods, seed: int, *, is_lost: bool) -> str:
        def on_steps(done: int, total: int) -> None:
            reports.append((done, total))
            if is_lost and len(reports) == 1:
                pods.leave(0)
                pods.join(0)

        built = initial_model(MODEL, BuiltinTask.COUNTING, seed, storage, placement(0), on_steps, report_every_s=0.0)
        assert built.warm_start is not None
        assert built.warm_start.cached is not is_lost
        return built.path

    with worker_pods(tmp_path, 1, TRAINERS) as pods:
        for seed in itertools.count():
            path = build(pods, seed, is_lost=True)
            assert (storage.resolve(path) / "model.safetensors").is_file()
            lost, again = reports[:-STEPS], reports[-STEPS:]
            assert again == [(step, STEPS) for step in range(1, STEPS + 1)]
            assert lost == again[: len(lost)]
            reports.clear()
            if lost:  # Otherwise the model was made before the pod left.
                break
        assert build(pods, seed, is_lost=False) == path
        assert reports == []
