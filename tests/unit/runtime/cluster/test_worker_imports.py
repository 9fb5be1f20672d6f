"""A pod imports once what its actors will want, and nothing else."""

from typing import Any

import pytest

from longshore.api.names import Component
from longshore.api.spec import RLJobSpec
from longshore_runtime.cluster.worker_imports import WorkerImports, worker_imports

ENGINE = "longshore_runtime.backends.vllm_cpu"
TRAINER = "longshore_runtime.backends.torch_trainer"
GPUS = {"workers": {"gpusPerPod": 1}}
OWN_PODS = {"placement": "Disaggregated", "trainerWorkers": {"gpusPerPod": 0}}


def imports(component: Component = Component.WORKER, **fields: Any) -> WorkerImports:
    required: dict[str, Any] = {
        "model": {"builtin": "Tiny"},
        "data": {"builtin": "Counting"},
        "algorithm": {"steps": 1, "promptsPerStep": 1, "responsesPerPrompt": 2, "maxResponseTokens": 64},
        "storage": {"claimName": "none"},
        "workers": {"gpusPerPod": 0},
    }
    return worker_imports(RLJobSpec.model_validate(required | fields), component)


def test_a_worker_of_a_job_without_gpus_holds_engines_and_trainers() -> None:
    assert imports().modules == (ENGINE, TRAINER)


@pytest.mark.parametrize("fields", [{}, GPUS], ids=["CPU", "GPU"])
def test_pods_that_only_train_or_only_sample_import_no_more(fields: dict[str, Any]) -> None:
    assert imports(Component.TRAINER, **fields, **OWN_PODS).modules == (TRAINER,)
    assert TRAINER not in imports(**fields, **OWN_PODS).modules


def test_parts_without_a_model_need_no_imports() -> None:
    fake = {"rollout": {"engine": {"backend": "Fake"}}, "trainer": {"backend": "Fake"}}
    assert imports(**fake) == WorkerImports()
