"""Trainers that lost a rank start again: from the newest checkpoint, and through the updates since then once more.

The responses of those steps are kept, so that nothing is sampled twice; gradients are computed again.
"""

import time
from collections.abc import Callable
from typing import Final, TypeVar

import structlog

from longshore.api.reasons import NoticeReason
from longshore_runtime.errors import TrainerLost, UserError
from longshore_runtime.trainer.group import TrainerGroup
from longshore_runtime.trainer.updates import StepTraining
from longshore_runtime.trainer.world import RankDeath

log = structlog.get_logger()

T = TypeVar("T")

PAUSES_S: Final = (0.0, 1.0, 2.0, 4.0, 8.0)
"""Seconds to wait after each failure in a row, without an update in between.

After the last of them, something is wrong that does not go away.

Ray places ranks on the node of a pod that ends until it notices: 5 s, or 15 s if the pod hangs.
"""


class Recovery:
    """Brings the trainers back to the last finished update."""

    def __init__(
        self,
        trainers: TrainerGroup,
        load: Callable[[], None],
        make_room: Callable[[], None] | None = None,
        settle: Callable[[], object] = lambda: None,
        pause: Callable[[float], None] = time.sleep,
        notify: Callable[[NoticeReason, str], None] = lambda reason, message: None,
    ) -> None:
        """Guard these trainers.

        Args:
            load: gives the trainers the newest checkpoint.
            settle: waits for a checkpoint that the ranks still write.
            make_room: has engines leave the GPUs; None: trainers have their own.
            notify: is told of each loss, with its cause.
        """
        self._trainers = trainers
        self._pause = pause
        self._notify = notify
        self._load = load
        self._make_room = make_room
        self._settle = settle
        self._kept: list[StepTraining] = []
        self._num_saving = 0
        """Number of first steps of these that the checkpoint holds which is being written."""
        self._num_failures = 0
        self._lost_reason = ""
        self._fatal: RankDeath | None = None
        """Death since the last update that the same work would probably bring about again."""

    @property
    def is_lost(self) -> bool:
        """Whether a rank is gone and its world has not been brought back to the last update yet."""
        return bool(self._lost_reason)

    def trained(self, training: StepTraining) -> None:
        """Note that the trainers have done a step."""
        self._kept.append(training)
        self._num_failures = 0
        self._fatal = None

    @property
    def num_kept_tokens(self) -> int:
        """Response tokens that are kept to repeat the updates since the newest checkpoint."""
        return sum(training.num_tokens for training in self._kept)

    def saving(self) -> None:
        """Note that a checkpoint is being written which holds every update so far."""
        self._num_saving = len(self._kept)

    def saved(self) -> None:
        """Note that this checkpoint is the newest one."""
        del self._kept[: self._num_saving]

    def lost(self, reason: str, generation: int) -> None:
        """Note that a rank is gone: the world starts again when it is needed. News of an older world are ignored."""
        if generation == self._trainers.generation and not self.is_lost:
            log.warning("trainer lost", reason=reason)
            self._lost_reason = reason

    def guarded(self, work: Callable[[], T], on_restored: Callable[[], None] = lambda: None) -> T:
        """Do something with the trainers; if they are lost, bring them back, call `on_restored` and do it once more.

        Raises:
            TrainerLost: that is impossible.
            UserError: a rank has died twice of the same work.
        """
        while True:
            try:
                if self.is_lost:
                    self._bring_back()
                    on_restored()
                return work()
            except TrainerLost as loss:
                self._num_failures += 1
                if self._num_failures > len(PAUSES_S):
                    raise
                self._lost_reason = self._lost_reason or str(loss)

    def _bring_back(self) -> None:
        self._find_cause()
        if self._num_failures:
            self._pause(PAUSES_S[self._num_failures - 1])
        log.warning("the trainers start again", reason=self._lost_reason, num_steps=len(self._kept))
        if self._make_room is not None:
            self._make_room()
        self._settle()
        self._trainers.restart()
        self._load()
        self._trainers.wake()
        for training in self._kept:
            for samples in training.batches:
                self._trainers.train(samples)
        self._lost_reason = ""  # Not before: until now they have older weights, which a stop must not save.

    def _find_cause(self) -> None:
        """Report why trainers are lost; raises UserError if the same work has ended them in the same way before."""
        found = self._trainers.find_death()
        if found is not None:
            self._lost_reason = str(found)
        self._notify(NoticeReason.TRAINER_LOST, self._lost_reason)
        if found is None or not found.is_own_fault:
            return
        if self._fatal is not None and self._fatal.death.exit_code == found.death.exit_code:
            raise UserError(f"{found}; it has happened twice in the same step")
        self._fatal = found
