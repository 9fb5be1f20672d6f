"""Every phase of a unit test is watched, fixtures included."""

from collections.abc import Generator
from typing import Final

import pytest

from tests.unit.guard import Guard

GUARD: Final = Guard()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    with GUARD.watching():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    with GUARD.watching():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None]:
    if nextitem is None:  # What contract and end-to-end tests share in this process ends with the last test.
        return (yield)
    with GUARD.watching():
        return (yield)
