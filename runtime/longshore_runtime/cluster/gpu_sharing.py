"""Share a GPU between judge and engine in worker pods of jobs with a colocated judge, by MPS where the driver can."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import structlog

from longshore.api.names import Component
from longshore.api.spec import RLJobSpec
from longshore_runtime.judge.mps import MpsDaemon, share_gpus
from longshore_runtime.rewards.surroundings import GPU_SHARING_VARIABLE

log = structlog.get_logger()


@contextlib.contextmanager
def shared_gpus(spec: RLJobSpec, component: Component) -> Iterator[MpsDaemon | None]:
    """Let every process that is started within the block find the MPS daemon, if there is one.

    Yields the daemon where this pod runs one: somebody has to watch it.
    """
    if component is not Component.WORKER or not any(one.is_colocated for one in spec.reward.functions):
        yield None
        return
    # Sockets have short paths, so the directory lies in /tmp whatever TMPDIR says.
    with tempfile.TemporaryDirectory(prefix="mps-", dir="/tmp") as directory:
        sharing = share_gpus(Path(directory))
        log.info("GPU sharing", mode=sharing.mode.value, reason=sharing.reason)
        os.environ.update(sharing.client_environment())
        # The directory of a daemon of its own differs from pod to pod and says nothing.
        why = "" if sharing.daemon is not None else f": {sharing.reason}"
        os.environ[GPU_SHARING_VARIABLE] = f"{sharing.mode.value}{why}"
        try:
            yield sharing.daemon
        finally:
            if sharing.daemon is not None:
                sharing.daemon.stop()
