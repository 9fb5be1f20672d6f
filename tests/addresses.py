"""Loopback addresses that this test process alone has."""

import functools

from longshore_devcluster.kubelet.addresses import Addresses


def network() -> str:
    """The first half of all of them. The port of a Ray head follows from its address, so it meets no other."""
    return _claim().network


@functools.cache
def _claim() -> Addresses:
    """Released when the process ends."""
    return Addresses()
