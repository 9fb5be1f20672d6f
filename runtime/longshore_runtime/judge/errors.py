"""Errors of judges: a failure never becomes a silent zero."""

from longshore_runtime.rewards.scoring import RewardError, RewardFault, RewardSetupError, WorkerBroken


class JudgeError(RewardError):
    """Raised when the judge gives no score for this sample; the message names the reward and the sample."""


class JudgeFault(RewardFault):
    """Raised when the judge could not be asked; the message is one sentence that names the reward and the sample."""


class JudgeBroken(WorkerBroken):
    """Raised when the judge cannot be asked again in this process; the message names the reward and the sample."""


class JudgeSetupError(RewardSetupError):
    """Raised when the judge can score no sample; the message is one sentence that begins with the field."""


class NoReply(Exception):
    """Raised when the model has no reply to these prompts; the message is one sentence without reward and sample."""


class NoReplyYet(NoReply):
    """Raised when a judge gave no reply, and another attempt may go better.

    It did not answer in time, its server failed, or it had no memory.
    """


class DeviceBroken(NoReplyYet):
    """Raised when a judge may reply only in another process: this one cannot use its GPU any more."""


class NotThere(NoReplyYet):
    """Raised when the judge was not asked, because nothing listens at the address."""
