"""What TRL does at an interval of updates: checkpoints and evaluation."""

from typing import Final

from longshore_cli.convert.left_to_do import checkpoints_to_keep
from longshore_cli.convert.mapping import EntryOutcome, ForeignSettings, MappingEntry, entry
from longshore_cli.convert.trl.objective import ALGORITHM, num_updates, temperature, updates_per_step


@entry(["save_strategy", "save_steps", "save_total_limit"], ["spec.checkpoint.everySteps", "spec.checkpoint.keep"],
       "in generations; a job always writes checkpoints. TRL keeps all without `save_total_limit`, a job the newest 2",
       save_steps=500)  # fmt: skip
def checkpoints(settings: ForeignSettings) -> EntryOutcome:
    is_counted = settings["save_strategy"] in (None, "steps")
    every = _steps_between(settings, settings.number("save_steps") or 500) if is_counted else 0
    keep = settings.count("save_total_limit")
    lost = {} if is_counted else {"save_strategy": "checkpoints are written at an interval of steps"}
    fields = {"spec.checkpoint.everySteps": every} if is_counted else {}
    is_none = settings["save_strategy"] == "no"
    return EntryOutcome(
        fields | ({"spec.checkpoint.keep": keep} if keep else {}),
        lost,
        to_do=() if keep or is_none else (checkpoints_to_keep("TRL"),),
    )


def _steps_between(settings: ForeignSettings, interval: float) -> int:
    """Return an interval in generations; TRL's is in updates, or below 1 a share of all of them."""
    return max(1, round(num_updates(settings, interval) / updates_per_step(settings)))


@entry(["eval_strategy", "eval_steps", "num_generations_eval", "num_generations", "temperature"],
       ["spec.evaluation.everySteps", "spec.evaluation.responsesPerPrompt", "spec.evaluation.temperature",
        "spec.data.heldOutPrompts"],
       "in generations; sampled as in training. No prompts are held out where TRL does not evaluate",
       logging_steps=10, num_generations=8, temperature=1.0)  # fmt: skip
def evaluation(settings: ForeignSettings) -> EntryOutcome:
    strategy, given = settings["eval_strategy"], settings.count("num_generations_eval")
    sampling = {
        "spec.evaluation.responsesPerPrompt": given or settings.wanted("num_generations", "a prompt needs responses"),
        "spec.evaluation.temperature": temperature.convert(settings).fields[f"{ALGORITHM}.temperature"],
    }
    if strategy == "steps":
        every = settings.number("eval_steps") or settings.number("logging_steps") or 0
        return EntryOutcome({"spec.evaluation.everySteps": _steps_between(settings, every)} | sampling)
    if strategy in (None, "no"):
        return EntryOutcome({"spec.data.heldOutPrompts": 0} | (sampling if given else {}))
    return EntryOutcome(sampling, {"eval_strategy": "the job evaluates every evaluation.everySteps steps: set it"})


ENTRIES: Final[tuple[MappingEntry, ...]] = (checkpoints, evaluation)
