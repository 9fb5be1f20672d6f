"""The models that can judge."""

from collections.abc import Sequence
from typing import Protocol

from longshore_runtime.judge.options import RemoteJudgeOptions, StreamedJudgeOptions


class JudgeModel(Protocol):
    """Answers questions; equal questions get equal answers as far as the model behind allows."""

    def complete(self, prompts: Sequence[str], max_tokens: int) -> list[str]:
        """One reply per prompt, in order, of up to `max_tokens` tokens.

        Raises NoReply or NoReplyYet, and JudgeSetupError (beginning with the field) when no prompt can have one.
        """

    def close(self) -> None:
        """Give up memory and connections."""


def create_judge_model(options: StreamedJudgeOptions | RemoteJudgeOptions) -> JudgeModel:
    """The model behind a judge; raises JudgeSetupError, which begins with the field."""
    if isinstance(options, RemoteJudgeOptions):
        from longshore_runtime.judge.remote import RemoteJudge

        return RemoteJudge(options)
    from longshore_runtime.backends.streamed_lm.judge import StreamedJudge

    return StreamedJudge(options)
