"""Sandboxes with everything that this machine offers, and with what a pod without namespaces offers."""

import os
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from typing import Final

import pytest

from longshore_runtime.sandbox.detection import detect
from longshore_runtime.sandbox.layers import Layer
from longshore_runtime.sandbox.sandbox import Sandbox
from longshore_runtime.sandbox.worker import default_python
from tests.contract.sandbox.world import LIMITS, World, survivors, world

FULL: Final = frozenset({Layer.NAMESPACES, Layer.SECCOMP, Layer.LANDLOCK, Layer.RLIMITS})
WITHOUT_NAMESPACES: Final = FULL - {Layer.NAMESPACES}
REQUIRE_NAMESPACES: Final = "LONGSHORE_REQUIRE_NAMESPACES"
"""Set where the machine is meant to have namespaces, as in the public CI."""


def need(layers: AbstractSet[Layer], available: AbstractSet[Layer]) -> None:
    """Skip the test on a machine without these layers; fail it where namespaces are required and missing."""
    if missing := layers - available:
        reported = f"this machine lacks {', '.join(sorted(missing))}"
        if Layer.NAMESPACES in missing and os.environ.get(REQUIRE_NAMESPACES):
            pytest.fail(f"{reported}, and {REQUIRE_NAMESPACES} is set")
        pytest.skip(reported)


@pytest.fixture(scope="session")
def available() -> frozenset[Layer]:
    """Layers of this machine."""
    return detect(default_python()).available


@pytest.fixture(scope="session")
def targets() -> Iterator[World]:
    """What attacks aim at."""
    with world() as targets:
        yield targets


@pytest.fixture(scope="module", params=[FULL, WITHOUT_NAMESPACES], ids=["full", "without namespaces"])
def sandbox(request: pytest.FixtureRequest, available: frozenset[Layer]) -> Iterator[Sandbox]:
    """A sandbox that holds; its users check that it leaves nothing running."""
    need(request.param, available)
    with Sandbox(request.param | (available & {Layer.USER}), LIMITS) as sandbox:
        yield sandbox
    assert survivors() == []
