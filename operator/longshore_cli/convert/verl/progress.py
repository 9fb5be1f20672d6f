"""What verl does at an interval of steps: checkpoints and evaluation."""

from typing import Final

from longshore_cli.convert.left_to_do import checkpoints_to_keep
from longshore_cli.convert.mapping import EntryOutcome, ForeignSettings, MappingEntry, entry
from longshore_cli.convert.verl.sections import ROLLOUT

_KEEP: Final = "trainer.max_actor_ckpt_to_keep"


@entry(
    ["trainer.save_freq", _KEEP],
    ["spec.checkpoint.everySteps", "spec.checkpoint.keep"],
    "a job always writes checkpoints: -1 leaves the default of 10 steps. Unset, it keeps the newest 2, and verl all",
)
def checkpoints(settings: ForeignSettings) -> EntryOutcome:
    every, keep = settings.count("trainer.save_freq"), settings.count(_KEEP)
    fields = {"everySteps": every, "keep": keep}
    return EntryOutcome(
        {f"spec.checkpoint.{name}": value for name, value in fields.items() if value},
        to_do=(checkpoints_to_keep("verl"),) if every and not keep else (),
    )


_VALIDATION: Final = f"{ROLLOUT}.val_kwargs"
_BEFORE: Final = "trainer.val_before_train"


@entry(
    ["trainer.test_freq", _BEFORE, f"{_VALIDATION}.n", f"{_VALIDATION}.do_sample", f"{_VALIDATION}.temperature"],
    ["spec.evaluation.everySteps", "spec.evaluation.responsesPerPrompt", "spec.evaluation.temperature",
     "spec.data.heldOutPrompts"],
    "`do_sample: false` is greedy with `rollout.mode: sync` of older versions, and without effect otherwise, as in "
    "verl. No prompts are held out where verl evaluates neither before training nor meanwhile",
    trainer__val_before_train=True,
)  # fmt: skip
def evaluation(settings: ForeignSettings) -> EntryOutcome:
    every, is_before = settings.count("trainer.test_freq") or 0, settings.flag(_BEFORE)
    is_sampled = settings[f"{ROLLOUT}.mode"] != "sync" or settings.flag(f"{_VALIDATION}.do_sample")
    fields = {
        "spec.evaluation.everySteps": every,
        "spec.evaluation.responsesPerPrompt": settings.count(f"{_VALIDATION}.n") or 1,
        "spec.evaluation.temperature": (settings.number(f"{_VALIDATION}.temperature") or 0.0) if is_sampled else 0.0,
    }
    if is_before:
        return EntryOutcome(fields)
    if every == 0:
        return EntryOutcome(fields | {"spec.data.heldOutPrompts": 0})
    why = "the model is always evaluated before and after training"
    return EntryOutcome(fields, {_BEFORE: why}, beside_learning=frozenset({_BEFORE}))


ENTRIES: Final[tuple[MappingEntry, ...]] = (checkpoints, evaluation)
