"""What an error of a rank means: a lost peer, a mistake in the job, or a bug."""

import threading
from dataclasses import dataclass

import pytest
import ray
from ray.exceptions import RayTaskError

from longshore_runtime.backends.gpu_failures import is_broken_gpu
from longshore_runtime.errors import TrainerLost, UserError
from longshore_runtime.trainer.failures import cause, lost_peer
from longshore_runtime.trainer.sending import Sending


class DistBackendError(RuntimeError):
    """Named like torch's."""


class OutOfMemoryError(RuntimeError):
    """Named like torch's."""


NCCL = """NCCL error in: NCCLUtils.cpp:94, invalid usage, NCCL version 2.27.5
ncclInvalidUsage: This usually reflects invalid usage of NCCL library.
Last error:
Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1b000"""


def raised(error: Exception) -> RayTaskError:
    """As Ray tells of it."""
    return RayTaskError("broadcast", "traceback", error)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeError("[pair.cc:547] Connection closed by peer [10.0.0.7]:1\nframe #0"), "[pair.cc:547] Connection"),
        (RuntimeError("Timed out waiting 5000ms for recv operation"), "Timed out waiting"),
        (RuntimeError("Gloo connectFullMesh failed with [pair.h:311] Connect timeout [none]"), "Gloo connectFullMesh"),
        (RuntimeError("Application timeout caused pair closure"), "Application timeout"),
        (RuntimeError("[pair.cc:9] Socket closed [none]"), "[pair.cc:9] Socket"),
        (DistBackendError(NCCL), "NCCL error in: .*; Duplicate GPU detected : rank 0 and rank 1"),
    ],
)
def test_errors_of_communication_name_a_lost_peer_in_one_line(error: Exception, reason: str) -> None:
    with pytest.raises(TrainerLost, match=rf"lost its peers \({reason.replace('[', chr(92) + '[')}"):
        raise cause(raised(error))
    message = lost_peer(raised(error))
    assert message is not None
    assert "\n" not in message


@pytest.mark.parametrize(
    "error",
    [
        OutOfMemoryError("CUDA out of memory"),
        AssertionError("fill comes first"),
        RuntimeError("no weight model.connector.proj"),
    ],
)
def test_other_errors_are_no_lost_peers(error: Exception) -> None:
    assert lost_peer(raised(error)) is None


class DeferredCudaCallError(Exception):
    """Named like torch's, which is no RuntimeError."""


NO_FABRIC = (
    "Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling NumCudaDevices() "
    "that might have already set an error? Error 802: system not yet initialized"
)
TOO_OLD = (
    "The NVIDIA driver on your system is too old (found version 12020). Please update your GPU driver or install a "
    "PyTorch version that has been compiled with your version of the CUDA driver."
)
ASSERTED = "NVML_SUCCESS == r INTERNAL ASSERT FAILED at CUDACachingAllocator.cpp, please report a bug to PyTorch."
ECC = """CUDA error: uncorrectable ECC error encountered
Search for `cudaErrorECCUncorrectable' in the documentation of CUDA."""


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeError(ECC), "uncorrectable ECC error encountered"),
        (RuntimeError(NO_FABRIC), "Error 802: system not yet initialized"),
        (DeferredCudaCallError("CUDA call failed lazily at initialization with error: x"), "failed lazily"),
        (RuntimeError("CUDA error: CUDA-capable device(s) is/are busy or unavailable"), "busy or unavailable"),
        (RuntimeError("Found no NVIDIA driver on your system. Please check"), "no NVIDIA driver"),
    ],
)
def test_a_gpu_that_fails_costs_a_replica_and_not_the_job(error: Exception, reason: str) -> None:
    found = cause(raised(error))
    assert isinstance(found, TrainerLost)
    assert reason in str(found)
    assert "\n" not in str(found)


@pytest.mark.parametrize(
    ("text", "is_broken"),
    [
        (ECC, True),
        (NO_FABRIC, True),
        ("No CUDA GPUs are available", True),
        ("CUDA driver initialization failed, you might not have a CUDA gpu.", True),
        ("CUDA error: unspecified launch failure", False),
        ("CUDA error: device-side assert triggered", False),
        ("CUDA error: an illegal memory access was encountered", False),
        ("CUDA error: no kernel image is available for execution on the device", False),
        ("CUDA error: out of memory", False),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", False),
        (ASSERTED, False),
        (TOO_OLD, False),
        ("the initialization error of a layer", False),
    ],
)
def test_a_gpu_is_broken_where_the_same_work_would_succeed_on_another(text: str, is_broken: bool) -> None:
    assert is_broken_gpu(text) == is_broken


@pytest.mark.parametrize("text", [ASSERTED, "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"])
def test_memory_that_does_not_suffice_has_other_names_too(text: str) -> None:
    found = cause(raised(RuntimeError(text)))
    assert isinstance(found, UserError)
    assert "maxTokensPerMicroBatch" in str(found)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("accumulate", UserError),
        ("update", UserError),
        ("wake", TrainerLost),
        ("fill", TrainerLost),
        ("begin_save", TrainerLost),
        ("weights", TrainerLost),
        ("load", TrainerLost),
    ],
)
def test_memory_that_another_process_has_kept_is_no_mistake_of_the_job(call: str, expected: type[Exception]) -> None:
    """The other process may be an engine that was killed a moment ago."""
    shown = f"ray::TrainerActor.{call}() (pid=7, ip=10.0.0.7)"
    assert isinstance(cause(RayTaskError(call, shown, OutOfMemoryError("CUDA out of memory"))), expected)


@dataclass
class Rank:
    """Answers like an actor; what `ray.get` raises is the answer."""

    answer: Exception | None

    @property
    def join_engines(self) -> "Rank":
        return self

    @property
    def broadcast(self) -> "Rank":
        return self

    def remote(self, *_: object) -> Exception | None:
        return self.answer


@pytest.fixture(autouse=True)
def answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Ray."""

    def get(answer: Exception | None, timeout: float) -> None:
        if answer is not None:
            raise answer

    monkeypatch.setattr(ray, "get", get)


def sending(error: Exception | None) -> Sending:
    """From one rank that raises this."""
    return Sending({0: Rank(error and raised(error))}, {0}, list, threading.Lock())


def test_a_broadcast_says_how_its_peers_were_lost_and_raises_everything_else() -> None:
    assert sending(None).broadcast()() is None
    assert sending(RuntimeError("Connection reset")).broadcast()() == "Connection reset"
    assert sending(RuntimeError("Connection reset")).join(None) == "Connection reset"  # type: ignore[arg-type]
    with pytest.raises(UserError, match="ran out of GPU memory"):
        sending(OutOfMemoryError("CUDA out of memory")).broadcast()()
    with pytest.raises(RayTaskError):
        sending(AssertionError("fill comes first")).broadcast()()
