"""Learning rates that follow the signal of an update: the share of its samples that teach something.

AdamW moves the weights by about the same distance whatever the size of the gradient. A strategy that trains on draws by
the length of their responses has updates with little signal (short prompts that the policy has learned) and updates
with much (the long ones). Scaling by signal lets every sample that teaches something move the weights about as far as
in batches that mix all lengths; over a window of updates, the mean learning rate stays about the same.
"""

from collections.abc import Sequence
from typing import Final

WINDOW_UPDATES: Final = 10
"""Updates, the current one among them, over which the mean signal is taken: two periods of tail batching."""
MAX_FACTOR: Final = 5.0
"""Where hardly any update has a signal, one that has some is not to throw the weights far away."""


def recent_signals(before: Sequence[float], signal: float) -> tuple[float, ...]:
    """Return the signals of the window that ends with an update of this signal (0 to 1), oldest first."""
    return (*before, signal)[-WINDOW_UPDATES:]


def signal_factor(recent: Sequence[float]) -> float:
    """Return what the learning rate of the newest update is multiplied by; 0 if it has no signal."""
    signal = recent[-1]
    return 0.0 if signal == 0.0 else min(MAX_FACTOR, signal * len(recent) / sum(recent))
