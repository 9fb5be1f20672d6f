"""What an operator would refuse of a job that the API server takes, if it was installed with the chart's defaults."""

from longshore.api.rljob import RLJob
from longshore_operator.template_rules import Allowed, refusal


class _Any(frozenset[str]):
    """Every name: which classes an operator allows is not known here."""

    def __contains__(self, name: object) -> bool:
        return True


_ALLOWED = Allowed(priority_classes=_Any(), runtime_classes=_Any())


def refused(job: RLJob) -> list[str]:
    """Return one sentence for each mistake."""
    sentence = refusal(job.spec, _ALLOWED)
    return [] if sentence is None else [sentence]
