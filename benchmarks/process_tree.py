"""Count CPU seconds of a process and of all that it has started: the cost of one side of a comparison.

A process whose parent ends, as that of Ray's actors does, is still found if the root adopts orphans.
"""

import psutil


def cpu_s(root: int) -> float:
    """Return the CPU seconds so far of a process and its descendants, also ended ones that were waited for."""
    process = psutil.Process(root)
    return sum(map(_cpu_s, [process, *process.children(recursive=True)]))


def _cpu_s(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0  # It has just ended; its parent has its time now.
    return float(times.user + times.system + times.children_user + times.children_system)
