"""Unit tests of the embedded cluster: as those of the project, they start no process and reach for no network."""

from tests.properties import load_profile
from tests.unit.conftest import pytest_runtest_call, pytest_runtest_setup, pytest_runtest_teardown

__all__ = ["pytest_runtest_call", "pytest_runtest_setup", "pytest_runtest_teardown"]

load_profile()
