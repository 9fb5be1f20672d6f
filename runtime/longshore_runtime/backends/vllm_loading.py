"""Report how far vLLM has read a checkpoint. A large one takes minutes, and vLLM itself only logs its progress.

An engine of one GPU reads in the process that starts it. One of several has a process per rank: each writes what it has
read into a pipe, which it finds by a variable of its environment (`vllm_rank`).
"""

import os
import struct
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
from vllm.v1.worker.worker_base import WorkerWrapperBase

OnLoaded = Callable[[int], None]
"""Function that is called with the bytes that have been read so far."""
PIPE: Final = "LONGSHORE_LOADED_BYTES"
"""Variable with the path of the pipe."""
RANK_EXTENSION: Final = "longshore_runtime.backends.vllm_rank.ReportingRank"
"""Class that vLLM imports in the process of each rank."""
_REPORT: Final = struct.Struct("<qq")
"""Format of a report: the number of a rank, and the bytes that it has read. A pipe takes so little as a whole."""
_NO_RANK: Final = 0
_FAILURE: Final = "failure"
"""Name of the file beside the pipe with the exception of a rank that does not start."""


@contextmanager
def loading_reported(on_loaded: OnLoaded, num_ranks: int) -> Iterator[None]:
    """Report progress of an engine that starts in this process within the block, after every tensor."""
    if num_ranks > 1:
        with _pipe(on_loaded, num_ranks):
            yield
        return
    all_weights = report_loading(on_loaded)
    try:
        yield
    finally:
        DefaultModelLoader.get_all_weights = all_weights


def report_loading(on_loaded: OnLoaded) -> Callable[..., Iterator[tuple[str, Any]]]:
    """Report whatever this process reads of a checkpoint from now on; return the function that was replaced."""
    all_weights: Callable[..., Iterator[tuple[str, Any]]] = DefaultModelLoader.get_all_weights

    def counted(*arguments: Any) -> Iterator[tuple[str, Any]]:
        num_bytes = 0
        for name, tensor in all_weights(*arguments):
            yield name, tensor
            num_bytes += tensor.nbytes
            on_loaded(num_bytes)

    DefaultModelLoader.get_all_weights = counted
    return all_weights


def report_failures(directory: Path) -> None:
    """Write to a file why this rank does not start; vLLM only tells the engine that it does not."""
    init_device = WorkerWrapperBase.init_device

    def init_and_load(rank: Any) -> None:
        with _failure_noted(directory / _FAILURE):
            init_device(rank)
        load_model = rank.worker.load_model

        def load(*arguments: Any, **named: Any) -> None:
            with _failure_noted(directory / _FAILURE):
                load_model(*arguments, **named)

        rank.worker.load_model = load

    WorkerWrapperBase.init_device = init_and_load


@contextmanager
def _failure_noted(file: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        # The first one counts: other ranks only miss it. The engine may have given up, too.
        with suppress(OSError), file.open("x", encoding="utf-8") as failure:
            failure.write(str(error))
        raise


def write_to(pipe: Path, rank: int) -> OnLoaded:
    """Return a function that writes reports of a rank to the pipe, and drops them if nobody reads any more."""
    descriptor = os.open(pipe, os.O_WRONLY)

    def write(num_bytes: int) -> None:
        with suppress(BrokenPipeError):
            os.write(descriptor, _REPORT.pack(rank, num_bytes))

    return write


@contextmanager
def _pipe(on_loaded: OnLoaded, num_ranks: int) -> Iterator[None]:
    """Open a pipe from the ranks. A separate thread reads it, because this one waits for the engine to start."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "loaded"
        os.mkfifo(path)
        pipe = os.open(path, os.O_RDWR)  # With a writer here, the pipe does not end when the first rank ends.
        reader = threading.Thread(target=_read, args=(pipe, on_loaded, num_ranks), name="loading", daemon=True)
        reader.start()
        os.environ[PIPE] = str(path)
        try:
            yield
        except Exception as error:
            if (failure := Path(directory) / _FAILURE).exists():
                raise RuntimeError(failure.read_text(encoding="utf-8")) from error
            raise
        finally:
            del os.environ[PIPE]
            os.write(pipe, _REPORT.pack(_NO_RANK, 0))
            reader.join()
            os.close(pipe)


def _read(pipe: int, on_loaded: OnLoaded, num_ranks: int) -> None:
    """Read reports of ranks; the progress of the engine is that of its slowest rank."""
    loaded: dict[int, int] = {}
    num_reported = 0
    while True:
        rank, num_bytes = _REPORT.unpack(os.read(pipe, _REPORT.size))
        if rank == _NO_RANK:
            return
        loaded[rank] = num_bytes
        if len(loaded) == num_ranks and min(loaded.values()) > num_reported:
            num_reported = min(loaded.values())
            on_loaded(num_reported)
