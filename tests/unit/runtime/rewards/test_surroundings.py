"""What reward workers find is reported of all of them."""

from longshore.api.reward import SandboxLayer
from longshore.api.runtime_status import RewardSurroundings
from longshore_runtime.rewards.surroundings import Surroundings, with_worker
from longshore_runtime.sandbox.layers import Layer, LayerReport


def sandboxed(*lacking: Layer) -> Surroundings:
    return Surroundings(LayerReport({layer: "no such kernel" if layer in lacking else None for layer in Layer}))


def test_the_reported_layers_are_those_that_hold_in_every_worker() -> None:
    known = with_worker(None, sandboxed(Layer.CGROUP))
    assert known is not None and known.sandbox == [layer for layer in SandboxLayer if layer is not SandboxLayer.CGROUP]
    known = with_worker(known, sandboxed(Layer.USER, Layer.NAMESPACES))
    assert known is not None
    assert known.sandbox == [SandboxLayer.SECCOMP, SandboxLayer.LANDLOCK, SandboxLayer.RLIMITS]
    assert with_worker(known, Surroundings()) == known


def test_each_way_of_sharing_gpus_is_reported_once() -> None:
    known = None
    for way in ("TimeSlicing: no such program", "MPS", "TimeSlicing: no such program"):
        known = with_worker(known, Surroundings(gpu_sharing=way))
    assert known == RewardSurroundings(gpu_sharing=["MPS", "TimeSlicing: no such program"])


def test_workers_without_a_sandbox_and_without_a_gpu_report_nothing() -> None:
    assert with_worker(None, Surroundings()) is None
    assert Surroundings().facts() == {}


def test_the_log_says_why_a_layer_lacks() -> None:
    assert sandboxed(Layer.CGROUP, Layer.USER).facts() == {
        "sandbox": ["Landlock", "Namespaces", "Rlimits", "Seccomp"],
        "lacking": {"Cgroup": "no such kernel", "User": "no such kernel"},
    }
