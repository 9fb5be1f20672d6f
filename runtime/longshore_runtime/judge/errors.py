"""What can go wrong with a judge; never a silent zero."""

from longshore_runtime.rewards.scoring import RewardError, RewardFault, RewardSetupError, WorkerBroken


class JudgeError(RewardError):
    """The judge gives no score for this sample: one sentence that names the reward and the sample."""


class JudgeFault(RewardFault):
    """The judge could not be asked: one sentence that names the reward and the sample."""


class JudgeBroken(WorkerBroken):
    """Nor can it be asked in this process again: one sentence that names the reward and the sample."""


class JudgeSetupError(RewardSetupError):
    """The judge can score no sample: one sentence that begins with the field."""


class NoReply(Exception):
    """The model has no reply to these prompts: one sentence; who asks adds reward and sample."""


class NoReplyYet(NoReply):
    """Raised when a judge gave no reply, and another attempt may go better.

    It did not answer in time, its server failed, or it had no memory.
    """


class DeviceBroken(NoReplyYet):
    """Raised when a judge may reply only in another process: this one cannot use its GPU any more."""


class NotThere(NoReplyYet):
    """The judge was not asked, because nothing listens at the address."""
