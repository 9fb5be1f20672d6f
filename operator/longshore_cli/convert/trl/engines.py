"""TRL's engines and GPUs."""

from typing import Final

from longshore_cli.convert.mapping import EntryOutcome, ForeignSettings, MappingEntry, Refused, direct, entry
from longshore_cli.convert.trl.objective import num_processes

_ENGINE: Final = "spec.rollout.engine"


@entry(["num_processes", "vllm_tensor_parallel_size", "vllm_mode"],
       ["spec.workers.replicas", "spec.workers.gpusPerPod", f"{_ENGINE}.tensorParallelSize"],
       "`num_processes` of accelerate: pods of up to 8 GPUs", vllm_tensor_parallel_size=1)  # fmt: skip
def workers(settings: ForeignSettings) -> EntryOutcome:
    gpus = num_processes(settings)
    per_pod = gpus if gpus <= 8 else 8
    if gpus % per_pod:
        raise Refused("num_processes", f"{gpus} GPUs do not fill nodes of 8")
    lost = {"vllm_mode": "engines share the GPUs of the trainers; placement: Disaggregated separates them"}
    return EntryOutcome(
        {
            "spec.workers.replicas": gpus // per_pod,
            "spec.workers.gpusPerPod": per_pod,
            f"{_ENGINE}.tensorParallelSize": settings.count("vllm_tensor_parallel_size") or 1,
        },
        lost if settings["vllm_mode"] == "server" else {},
    )


@entry(["vllm_enable_sleep_mode"], [f"{_ENGINE}.sleepLevel"], "false: 0, engines stay awake; unset: 1")
def sleeping(settings: ForeignSettings) -> EntryOutcome:
    return EntryOutcome({f"{_ENGINE}.sleepLevel": 0} if settings["vllm_enable_sleep_mode"] is False else {})


ENTRIES: Final[tuple[MappingEntry, ...]] = (
    workers,
    direct("vllm_gpu_memory_utilization", f"{_ENGINE}.gpuMemoryUtilization", default=0.3),
    sleeping,
)
