"""What is shown of an address tells no secret."""

import pytest

from longshore.api.addresses import redacted, without_credentials


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


@pytest.mark.parametrize("password", ["s3cret", "s3/cret", "s3#cret", "s3?cret", "s3'cret", "s3@cret"])
def test_a_password_is_left_out_of_a_text_whatever_characters_it_has(password: str) -> None:
    message = redacted(f"no answer from http://user:{password}@grader:8000/v1: connection refused")
    assert message == "no answer from http://grader:8000/v1: connection refused"


def test_a_text_without_credentials_stays_as_it_is() -> None:
    message = "no answer from http://grader:8000/v1, ask admin@example.org"
    assert redacted(message) == message
