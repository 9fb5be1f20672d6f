"""What an operator would refuse of a job that the API server takes, if it was installed with the chart's defaults."""

from longshore.api.rljob import RLJob
from longshore_operator.kueue.view import LABEL_QUEUE
from longshore_operator.sharing.concern import KUEUE_REFUSAL
from longshore_operator.template_rules import Allowed, refusal


class _Any(frozenset[str]):
    """Every name: which classes an operator allows is not known here."""

    def __contains__(self, name: object) -> bool:
        return True


_ALLOWED = Allowed(priority_classes=_Any(), runtime_classes=_Any())


def refused(job: RLJob) -> list[str]:
    """Return one sentence for each mistake."""
    found = [refusal(job.spec, _ALLOWED)]
    if job.spec.sharing is not None and LABEL_QUEUE in (job.metadata.get("labels") or {}):
        found.append(KUEUE_REFUSAL)
    return [sentence for sentence in found if sentence is not None]
