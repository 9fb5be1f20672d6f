"""What is shown of an address tells no secret."""

import pytest

from longshore.api.addresses import without_credentials


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://user:s3cret@grader:8000/v1", "http://grader:8000/v1"),
        ("https://s3cret@[::1]:1/v1?key=s3cret#s3cret", "https://[::1]:1/v1"),
        ("http://grader?key=s3cret", "http://grader"),
        ("http://grader", "http://grader"),
        ("http://us er:s3cret@x", "(an address that cannot be read)"),
    ],
)
def test_credentials_are_left_out(url: str, shown: str) -> None:
    assert without_credentials(url) == shown
