"""A pod imports once what its actors will want, and nothing else."""

from typing import Any

import pytest

from longshore.api.names import Component
from longshore.api.spec import RLJobSpec
from longshore_runtime.cluster.worker_imports import WorkerImports, worker_imports

ENGINE = "longshore_runtime.backends.vllm_cpu"
TRAINER = "longshore_runtime.backends.torch_trainer"
FLASHINFER = "VLLM_ALLREDUCE_USE_FLASHINFER"
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


def test_variables_of_vllm_are_set_before_it_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "sh")  # A program that is there.
    assert imports().environment["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert "TORCHDYNAMO_DISABLE" not in imports().environment
    eager = imports(rollout={"engine": {"enforceEager": True}})
    assert eager.environment["TORCHDYNAMO_DISABLE"] == "1"
    compiled = imports(rollout={"engine": {"enforceEager": True}}, trainer={"torchCompile": True})
    assert "TORCHDYNAMO_DISABLE" not in compiled.environment, "trainers inherit it"


def test_nothing_is_compiled_where_there_is_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert imports().environment["TORCHDYNAMO_DISABLE"] == "1", "the norms of Gemma compile themselves"


def test_engines_on_gpus_import_vllm_themselves() -> None:
    """An import of vLLM looks for GPUs, and a process that has used a GPU cannot be forked."""
    assert imports(**GPUS).modules == (TRAINER,)


def test_torch_gets_the_variables_that_vllm_would_set_too_late_for_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FLASHINFER, raising=False)
    environment = imports(**GPUS).environment
    assert environment["PYTORCH_NVML_BASED_CUDA_CHECK"] == "1"
    assert environment["TORCHINDUCTOR_COMPILE_THREADS"] == "1"
    assert "OMP_NUM_THREADS" not in environment, "it is for engines on processors"
    assert environment[FLASHINFER] == "0", "its kernels would need the compiler of CUDA"
    monkeypatch.setenv(FLASHINFER, "1")
    assert imports(**GPUS).environment[FLASHINFER] == "1", "the pod says that it has the compiler"


@pytest.mark.parametrize("fields", [{}, GPUS], ids=["CPU", "GPU"])
def test_pods_that_only_train_or_only_sample_import_no_more(fields: dict[str, Any]) -> None:
    assert imports(Component.TRAINER, **fields, **OWN_PODS).modules == (TRAINER,)
    assert TRAINER not in imports(**fields, **OWN_PODS).modules


def test_parts_without_a_model_need_no_imports() -> None:
    fake = {"rollout": {"engine": {"backend": "Fake"}}, "trainer": {"backend": "Fake"}}
    assert imports(**fake) == WorkerImports()
