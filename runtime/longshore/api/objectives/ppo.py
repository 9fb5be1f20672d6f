"""PPO."""

from typing import Literal

from longshore.api.objectives.with_critic import ObjectiveWithCritic


class Ppo(ObjectiveWithCritic):
    """Proximal policy optimisation with a critic, which values every token and so replaces the siblings of a response.

    PPO (arXiv 1707.06347) with generalised advantage estimation (arXiv 1506.02438), as verl's `adv_estimator: gae`. The
    critic is a second model with an optimizer of its own on the GPUs of the trainer, where it needs as much memory as
    the policy. Suits prompts with one response, and long responses, of which it says where they went wrong. Advantages
    are known after the round, so `rollout.handover` is AfterRound.
    """

    name: Literal["PPO"] = "PPO"
