"""Arguments of GRPOTrainer that make a training that no RLJob can do."""

from typing import Final

from longshore_cli.convert.mapping import EntryOutcome, ForeignSettings, MappingEntry, Refused, entry

_REASONS: Final = {
    "rollout_func": "engines sample responses, and no function of the program: write what it does in an episode as an "
    "agent that asks the model over OpenAI's API (kind Agent in spec.environments), or what it does between turns as a "
    "class for environment_factory, and leave it out to convert the rest",
    "quantization_config": "the trained model is not quantised",
}


@entry(_REASONS, [], "unset: engines sample every turn, and no weights are quantised")
def impossible(settings: ForeignSettings) -> EntryOutcome:
    for key, reason in _REASONS.items():
        if settings.plain(key) or settings.below(key):
            raise Refused(key, reason)
    return EntryOutcome()


ENTRIES: Final[tuple[MappingEntry, ...]] = (impossible,)
