"""Variables that vLLM reads when it is imported."""

import pytest

from longshore_runtime.backends.vllm_environment import vllm_environment


@pytest.mark.parametrize(("of_the_pod", "found"), [(None, "0"), ("1", "1")])
def test_engines_of_several_gpus_need_no_compiler_of_cuda(
    of_the_pod: str | None, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless the pod says that it has one, the kernels that would be compiled are not used."""
    monkeypatch.delenv("VLLM_ALLREDUCE_USE_FLASHINFER", raising=False)
    if of_the_pod is not None:
        monkeypatch.setenv("VLLM_ALLREDUCE_USE_FLASHINFER", of_the_pod)
    assert vllm_environment(accelerator=True, enforce_eager=False)["VLLM_ALLREDUCE_USE_FLASHINFER"] == found
