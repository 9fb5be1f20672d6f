"""Environment variables that vLLM, torch and OpenMP read when they are imported."""

VLLM_ENVIRONMENT = {
    # The engine runs in the process of its actor: an abort takes effect at the next step, and nothing is serialised.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "TOKENIZERS_PARALLELISM": "false",
}


def vllm_environment(*, accelerator: bool, enforce_eager: bool) -> dict[str, str]:
    """Return the variables to set before vLLM is imported."""
    if accelerator:
        return dict(VLLM_ENVIRONMENT)
    # Several engines share the cores of a CPU node: bound to cores, all would choose the same ones.
    cpu = {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    # Some of vLLM's functions are decorated for compilation even when the model runs eagerly.
    eager = {"TORCHDYNAMO_DISABLE": "1"} if enforce_eager else {}
    return {**VLLM_ENVIRONMENT, **cpu, **eager}
