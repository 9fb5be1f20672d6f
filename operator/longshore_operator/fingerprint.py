"""Stable fingerprints, to see drift without comparing whole objects."""

import hashlib
import json
from typing import Any


def fingerprint(value: Any) -> str:
    """Sixteen hexadecimal digits that depend on the JSON value alone."""
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]
