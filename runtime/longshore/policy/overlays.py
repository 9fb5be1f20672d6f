"""Whether an overlay can be carried out: what the operator decided may come late, twice, or to pods that are not there.

An overlay names pods that train for the rest of one round of one attempt. It is carried out whole or refused whole.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from longshore.api.shapes import sets_that_train, united
from longshore.api.status import Overlay


@dataclass(frozen=True)
class RoundState:
    """The round that runs, as far as an overlay is concerned."""

    number: int
    attempt: int
    has_batch: bool
    """Whether the batch is complete, so that nothing needs to be sampled any longer."""
    trainer_pods: tuple[int, ...]
    """Pods that an overlay of this round has repurposed already."""
    rollout_pods: frozenset[int]
    """Pods with engines that sample."""
    trainer_replicas: tuple[frozenset[int], ...]
    """Pods that each trainer replica spans."""
    engines: tuple[frozenset[int], ...] = ()
    """The same of each engine."""


def refusal(overlay: Overlay, state: RoundState) -> str:
    """Return why it cannot be carried out, in one sentence; empty if it can."""
    pods = set(overlay.trainer_pods)
    if overlay.attempt != state.attempt:
        return f"it is for attempt {overlay.attempt}, and this is attempt {state.attempt}"
    if overlay.round != state.number:
        return f"it is for round {overlay.round}, and this is round {state.number}"
    if state.has_batch:
        return f"round {state.number} has its batch already"
    if state.trainer_pods:
        return f"round {state.number} has repurposed pods {_listed(state.trainer_pods)} already"
    if unknown := pods - state.rollout_pods:
        return f"no engine samples in pods {_listed(unknown)}"
    for one in united([*state.trainer_replicas, *state.engines]):
        if one & pods and not one <= pods:
            return f"pods {_listed(one)} move together, because an engine or a trainer replica lies in several of them"
    if idle := pods.difference(*sets_that_train(state.trainer_replicas, state.engines)):
        return f"pods {_listed(idle)} hold no whole trainer replica"
    if pods >= state.rollout_pods:
        return "no pod would be left to sample"
    return ""


def _listed(pods: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(pods)))
