"""What a job does now, in words."""

from typing import Final

from longshore.api.status import Phase
from longshore_cli.watch.model import JobView

_WORDS: Final = {
    "Pending": "waiting for pods",
    "Starting": "start of the pods",
    "WaitForWorkers": "waiting for workers",
    "PrepareModel": "model and warm start",
    "StartEngines": "start of the engines",
    "ProfileEngines": "measuring the engines",
    "ProfileTrainers": "measuring the trainers",
    "ProfileSizes": "measuring other tensor-parallel sizes",
    "ProfileJudges": "measuring the judges",
    "Evaluate": "evaluation",
    "Rollout": "rollout",
    "Train": "training",
    "Publish": "weights to the engines",
    "Done": "end of the pods",
    "Failing": "end of the pods",
    "Restarting": "restart",
    "Suspended": "suspension",
}
IN_EVERY_ROUND: Final = frozenset({"Rollout", "Train", "Publish"})
PREPARATIONS: Final = frozenset({"WaitForWorkers", "PrepareModel", "StartEngines"})
"""A coordinator that does these has not read its checkpoint yet, so it reports zeros."""
_WITHOUT_COORDINATOR: Final = frozenset({Phase.PENDING, Phase.RESTARTING, Phase.SUSPENDED})


def activity(view: JobView) -> str:
    """The coordinator's word for what it does; the phase while no coordinator runs."""
    if view.phase in _WITHOUT_COORDINATOR or view.is_finished:
        return str(view.phase)
    return view.runtime.activity or str(view.phase)


def in_words(activity_name: str) -> str:
    """For people; names that this version does not know stay as they are."""
    return _WORDS.get(activity_name, activity_name)
