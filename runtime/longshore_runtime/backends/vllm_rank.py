"""vLLM imports this in the process of each rank of an engine of several GPUs, which reports what it reads."""

import os
from pathlib import Path

from longshore_runtime.backends.vllm_loading import PIPE, report_loading, write_to


class ReportingRank:
    """Adds nothing to vLLM's worker; vLLM imports this module for its sake."""


if PIPE in os.environ:
    report_loading(write_to(Path(os.environ[PIPE]), os.getpid()))
