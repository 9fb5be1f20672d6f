"""The models that can judge."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from longshore_runtime.judge.errors import NoReply
from longshore_runtime.judge.options import PoolJudgeOptions, RemoteJudgeOptions, StreamedJudgeOptions


class JudgeModel(Protocol):
    """Answers questions; equal questions get equal answers as far as the model behind allows."""

    def complete(self, prompts: Sequence[str], max_tokens: int) -> Sequence[str | NoReply]:
        """Return one reply per prompt, in order, of up to `max_tokens` tokens, or why this prompt has none.

        Raises:
            NoReply, NoReplyYet: none has a reply.
            JudgeSetupError: none ever can have one; begins with the field.
        """

    def close(self) -> None:
        """Give up memory and connections."""


@runtime_checkable
class WaitingModel(JudgeModel, Protocol):
    """Model that may wait, within a call, for something that is away."""

    def give_up(self) -> None:
        """End the wait, and all later ones, with an error; called from any thread."""


def create_judge_model(options: StreamedJudgeOptions | RemoteJudgeOptions | PoolJudgeOptions) -> JudgeModel:
    """Return the model behind a judge; raises JudgeSetupError, which begins with the field."""
    if isinstance(options, RemoteJudgeOptions):
        from longshore_runtime.judge.remote import RemoteJudge

        return RemoteJudge(options)
    if isinstance(options, PoolJudgeOptions):
        from longshore_runtime.judge.pool import PoolJudge

        return PoolJudge(options)
    from longshore_runtime.backends.streamed_lm.judge import StreamedJudge

    return StreamedJudge(options)
