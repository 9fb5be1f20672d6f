"""Ask a teacher behind an endpoint about groups of a step, on their way from the round to the trainers."""

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import replace
from itertools import islice
from typing import Final

from longshore.policy.draws import Draw
from longshore_runtime.data.prompt_record import PromptRecord
from longshore_runtime.errors import CannotContinue, UserError
from longshore_runtime.judge.teacher import RemoteTeacher
from longshore_runtime.rollout.batch import ScoredGroup
from longshore_runtime.rollout.events import Events, TeacherAnswered
from longshore_runtime.trainer.updates import conversations
from longshore_runtime.trajectories.trajectory import LogProbs

_TICK_S: Final = 0.5


class TaughtGroups:
    """Passes each group on when the teacher has answered. Use once; everything runs in the driver's thread."""

    def __init__(
        self,
        teacher: RemoteTeacher,
        prompts: Sequence[PromptRecord],
        events: Events,
        train_on: Callable[[ScoredGroup], None],
    ) -> None:
        """Take the parts; `prompts`: by index of the draw. `train_on` gets the groups: `StepWork.train_on`."""
        self._teacher = teacher
        self._prompts = prompts
        self._events = events
        self._pass_on = train_on
        self._waiting: dict[Draw, tuple[ScoredGroup, Future[list[LogProbs]]]] = {}

    def train_on(self, group: ScoredGroup) -> None:
        """Ask about a group of the batch; does not wait."""
        record = self._prompts[group.draw.index]
        answer = self._teacher.ask(
            [
                (prompt_tokens, trajectory.tokens)
                for scored in group.responses
                for prompt_tokens, trajectory in conversations(scored.completion, record)
            ]
        )
        self._waiting[group.draw] = group, answer
        answer.add_done_callback(lambda _: self._events.put(TeacherAnswered(self, group.draw)))

    def answered(self, event: TeacherAnswered) -> None:
        """Pass on the group that was answered; raises CannotContinue if it was not."""
        if event.sender is self:  # Otherwise the round was sampled again.
            self._finish(event.draw)

    def finish(self, check: Callable[[], None]) -> None:
        """Wait for all answers, and pass their groups on; raises CannotContinue, and what `check` raises."""
        while self._waiting:
            check()
            answered, _ = wait([answer for _, answer in self._waiting.values()], _TICK_S, FIRST_COMPLETED)
            for draw in [draw for draw, (_, answer) in self._waiting.items() if answer in answered]:
                self._finish(draw)

    def _finish(self, draw: Draw) -> None:
        if draw not in self._waiting:
            return  # `finish` came before the event.
        group, answer = self._waiting.pop(draw)
        try:
            found = iter(answer.result())
        except UserError as error:  # It answered when the session began, and may when it is repaired.
            raise CannotContinue(str(error)) from error
        record = self._prompts[draw.index]
        responses = [
            replace(one, teacher_log_probs=tuple(islice(found, len(conversations(one.completion, record)))))
            for one in group.responses
        ]
        self._pass_on(replace(group, responses=tuple(responses)))
