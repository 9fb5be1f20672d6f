"""Whether the packages of the trackers that a job names are there."""

import importlib.util

from longshore.api.tracking import Tracking


def missing_packages(tracking: Tracking) -> list[str]:
    """Return one sentence for each tracker whose package is not installed where this runs."""
    return [
        f"tracking.{package}: the Python package {package} is not installed; use an image with longshore[trackers], or "
        f"remove tracking.{package}"
        for package in tracking.packages
        if importlib.util.find_spec(package) is None
    ]
