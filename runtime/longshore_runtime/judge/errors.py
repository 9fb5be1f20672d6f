"""What can go wrong with a judge; never a silent zero."""

from longshore_runtime.rewards.scoring import RewardError, RewardFault, RewardSetupError


class JudgeError(RewardError):
    """The judge gives no score for this sample: one sentence that names the reward and the sample."""


class JudgeFault(RewardFault):
    """The judge could not be asked: one sentence that names the reward and the sample."""


class JudgeSetupError(RewardSetupError):
    """The judge can score no sample: one sentence that begins with the field."""


class NoReply(Exception):
    """The model has no reply to these prompts: one sentence; who asks adds reward and sample."""


class NoReplyYet(NoReply):
    """As before, and another attempt may go better: no answer in time, a failing server, no memory."""
