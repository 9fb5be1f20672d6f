"""Stable fingerprints, to see drift without comparing whole objects."""

import hashlib
import json
from typing import Any

from longshore.api.spec import RLJobSpec

_NOT_SEEN_BY_PODS = {
    "suspend",
    "ttl_seconds_after_finished",
    "active_deadline_seconds",
    "backoff_limit",
    "clean_pod_policy",
    "image",
}
"""Changes of these do not restart a running job; a new image is taken by the next attempt."""


def fingerprint(value: Any) -> str:
    """Sixteen hexadecimal digits that depend on the JSON value alone."""
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def pod_settings_fingerprint(spec: RLJobSpec) -> str:
    """Fingerprint of the settings that pods run with: a change of them needs a new attempt."""
    return fingerprint(spec.model_dump(mode="json", by_alias=True, exclude=_NOT_SEEN_BY_PODS))
