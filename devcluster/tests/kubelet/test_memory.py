"""Which containers are measured, and which are over their memory limit."""

from typing import Any

import pytest

from longshore_devcluster.kubelet.memory import MemoryGuard, memory_limit_bytes

GIB = 1 << 30


def test_container_below_its_limit_is_not_measured() -> None:
    assert not MemoryGuard(4 * GIB).must_measure(4 * GIB)


def test_shared_pages_do_not_count_in_every_process() -> None:
    guard = MemoryGuard(4 * GIB)
    assert guard.must_measure(10 * GIB)
    assert not guard.is_exceeded(10 * GIB, used_bytes=2 * GIB)
    assert guard.is_exceeded(10 * GIB, used_bytes=4 * GIB + 1)


def test_container_is_measured_again_once_it_grew_by_half_of_what_was_free() -> None:
    guard = MemoryGuard(4 * GIB)
    guard.is_exceeded(10 * GIB, used_bytes=2 * GIB)
    assert [guard.must_measure(resident) for resident in (10 * GIB, 11 * GIB - 1, 11 * GIB)] == [False, False, True]


def test_container_of_constant_size_is_measured_at_every_tenth_look() -> None:
    guard = MemoryGuard(4 * GIB)
    measured = []
    for look in range(1, 31):
        if guard.must_measure(10 * GIB):
            measured.append(look)
            guard.is_exceeded(10 * GIB, used_bytes=2 * GIB)
    assert measured == [1, 11, 21]


@pytest.mark.parametrize(
    ("container", "pod", "limit_bytes"),
    [
        ({"limits": {"memory": "1Gi"}, "requests": {"memory": "1Mi"}}, {"limits": {"memory": "2Gi"}}, GIB),
        ({}, {"limits": {"memory": "2Gi"}}, 2 * GIB),
        ({"requests": {"memory": "1Gi"}, "limits": {"cpu": 1}}, {}, None),
        ({"limits": {"memory": 0}}, {}, None),
    ],
)
def test_limit_is_that_of_the_container_else_that_of_the_pod(
    container: dict[str, Any], pod: dict[str, Any], limit_bytes: int | None
) -> None:
    assert memory_limit_bytes({"resources": container}, {"spec": {"resources": pod}}) == limit_bytes
