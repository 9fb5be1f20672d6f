"""What a machine must have for pods with a core each."""

import os
from types import ModuleType

import pytest
from benchmarks import pipeline, stream
from benchmarks.local_pods import lacks_for_pinning


@pytest.mark.parametrize("benchmark", [stream, pipeline], ids=["stream", "pipeline"])
def test_two_gpu_pods_need_two_cores(benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5})
    assert lacks_for_pinning(benchmark.WORKLOAD.spec) == ""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3})
    assert lacks_for_pinning(benchmark.WORKLOAD.spec) == (
        "2 pods with a processor core each are needed, and this process may use 1"
    )


def test_a_benchmark_that_lacks_something_ends_with_2_and_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["stream"])
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3})
    assert stream.main() == 2
    assert capsys.readouterr().err.startswith("stream: 2 pods")
