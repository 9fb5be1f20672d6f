"""Every phase of a unit test is watched, fixtures included, and waits for no disk."""

import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Final
from unittest.mock import patch

import pytest

from tests.unit.guard import Guard

GUARD: Final = Guard()


@contextmanager
def _watched() -> Iterator[None]:
    """No unit test cuts the power, so that files need not have reached the disk."""
    with GUARD.watching(), patch.object(os, "fsync", lambda descriptor: None):
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    with _watched():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    with _watched():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None]:
    if nextitem is None:  # What contract and end-to-end tests share in this process ends with the last test.
        return (yield)
    with _watched():
        return (yield)
