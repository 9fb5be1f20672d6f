"""What to do about a pod that the API server refuses for its requests or limits: its words name no field of the job."""

import re
from collections.abc import Iterable
from typing import Final

_LIMIT_BELOW_REQUEST: Final = re.compile(r"must be less than or equal to .*limit")
_QUOTA_OF_PODS: Final = re.compile(r"^pods? .*failed quota: [^:]+: must specify (?P<what>.+)", re.IGNORECASE)
_CONTAINERS: Final = re.compile(r"for: ([\w.,-]+)")
_OURS: Final = "longshore"


def with_advice(refusal: str, components: Iterable[str]) -> str:
    """Return what the API server says, with the fix if it is about requests and limits of a pod.

    `components`: fields of the spec that describe pods, such as `spec.workers`.
    """
    fields = list(components)
    templates = _listed([f"{field}.template" for field in fields])
    if _LIMIT_BELOW_REQUEST.search(refusal):
        return (
            f"{refusal}; that limit is one of the template or of a LimitRange of the namespace: set higher limits of "
            f"the container longshore in {templates}, or lower resources there"
        )
    required = _QUOTA_OF_PODS.search(refusal)
    if required is None:
        return refusal
    named = [name for names in _CONTAINERS.findall(required["what"]) for name in names.split(",")]
    containers = list(dict.fromkeys(named)) or [_OURS]
    if "limits." in required["what"] or containers != [_OURS]:
        what = "limits" if "limits." in required["what"] else "resources"
        plural = "s" if len(containers) > 1 else ""
        return f"{refusal}; set them as {what} of the container{plural} {_listed(containers)} in {templates}"
    return f"{refusal}; set them in resources of {_listed(fields)}"


def _listed(words: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))
