"""Environments of an RLJob that take the place of another system's agents."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from longshore_cli.convert.mapping import EntryOutcome

ENVIRONMENTS: Final = "spec.environments"
CHAT: Final = "spec.data.chat"
_MAX_TURNS: Final = 1_000
"""Largest `maxTurns` that an RLJob takes."""


def chat(arguments: Mapping[str, Any], *, is_agent: bool) -> EntryOutcome:
    """Return how prompts become conversations, which those of agents must be; fields without a value are left out."""
    given = {f"{CHAT}.{name}": value for name, value in arguments.items() if value}
    return EntryOutcome(given or ({CHAT: {}} if is_agent else {}))


def outcome(
    environments: Sequence[dict[str, Any]], turns: int | None, system: str, look: Sequence[str]
) -> EntryOutcome:
    """Return environments with their limits.

    Args:
        environments: environments without `maxTurns`.
        turns: largest number of turns of an episode; None: the other system has no limit.
        system: name of the other system.
        look: what is left to do for these environments alone.
    """
    limited = [one | {"maxTurns": min(turns or _MAX_TURNS, _MAX_TURNS)} for one in environments]
    unlimited = [] if turns else [
        f"Look at maxTurns of {ENVIRONMENTS}, {_MAX_TURNS}: {system} has no limit of turns here, and the tokens of an "
        "episode end it (spec.algorithm.maxResponseTokens).",
    ]  # fmt: skip
    others = (
        f"Look at callTimeoutSeconds of {ENVIRONMENTS}: a call of more than 10 s ends its episode, and {system} waits.",
        f"Name in pods.egress of {ENVIRONMENTS} what the environment connects to: where network policies are enforced, "
        "its pods reach nothing else.",
    )
    return EntryOutcome({ENVIRONMENTS: limited}, to_do=(*look, *unlimited, *others))
