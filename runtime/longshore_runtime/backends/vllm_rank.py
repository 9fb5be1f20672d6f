"""Report what a rank reads, and why it does not start.

vLLM imports this module in each rank of an engine of several GPUs.
"""

import os
from pathlib import Path

from longshore_runtime.backends.vllm_loading import PIPE, report_failures, report_loading, write_to


class ReportingRank:
    """Extension of vLLM's worker that adds nothing; naming it makes vLLM import this module."""


if PIPE in os.environ:
    report_loading(write_to(Path(os.environ[PIPE]), os.getpid()))
    report_failures(Path(os.environ[PIPE]).parent)
