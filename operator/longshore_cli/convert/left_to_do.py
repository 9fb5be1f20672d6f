"""What a person has to look at, whichever system a configuration is of."""

from longshore_cli.convert.mapping import EntryOutcome


def checkpoints_to_keep(system: str) -> str:
    """Return the sentence about a system that keeps all checkpoints."""
    return (
        f"Set spec.checkpoint.keep to the number of checkpoints that you need: {system} keeps all, a job the newest 2."
    )


def columns(prompt: str, answer: str) -> str:
    """Return the sentence about the columns of rows: those of prompts and of reference answers."""
    return (
        f"See that spec.data.promptField ({prompt}) and answerField ({answer}) name columns of your rows: "
        "`longshore check JOB --data FILE` tries them on a file."
    )


def weight_decay(decay: float, exempting: str | None) -> EntryOutcome:
    """Return the weight decay of every parameter; `exempting`: who leaves out biases and norms."""
    look = (
        f"Look at spec.algorithm.weightDecay: {decay:g} is for every parameter, and in {exempting} for all but biases "
        "and norms."
    )
    is_other = exempting is not None and decay > 0
    return EntryOutcome({"spec.algorithm.weightDecay": decay}, to_do=(look,) if is_other else ())
