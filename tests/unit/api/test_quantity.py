"""Quantities as Kubernetes writes them."""

import pytest

from longshore.api.quantity import parse_bytes


@pytest.mark.parametrize(
    ("quantity", "num_bytes"),
    [(512, 512), ("512", 512), ("64Mi", 64 * 2**20), ("1.5Gi", 3 * 2**29), ("2G", 2 * 10**9), ("1500m", 1)],
)
def test_quantities_are_bytes(quantity: str | int, num_bytes: int) -> None:
    assert parse_bytes(quantity) == num_bytes
