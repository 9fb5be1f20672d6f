"""What to do about a pod that the API server refuses for its requests or limits: its words name no field of the job."""

import re
from collections.abc import Iterable
from typing import Final

_LIMIT_BELOW_REQUEST: Final = re.compile(r"must be less than or equal to .*limit")
_LIMITS_ARE_REQUIRED: Final = re.compile(r"must specify .*\blimits\.")
_REQUESTS_ARE_REQUIRED: Final = re.compile(r"must specify ")


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
    if _LIMITS_ARE_REQUIRED.search(refusal):
        return f"{refusal}; set them as limits of the container longshore in {templates}"
    if _REQUESTS_ARE_REQUIRED.search(refusal):
        return f"{refusal}; set them in resources of {_listed(fields)}"
    return refusal


def _listed(words: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))
