"""What is shown of an address tells no secret."""

import pytest

from longshore.api.addresses import redacted, shown, without_credentials


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://user:s3cret@grader:8000/v1", "http://grader:8000/v1"),
        ("https://s3cret@[::1]:1/v1?key=s3cret#s3cret", "https://[::1]:1/v1"),
        ("http://grader?key=s3cret", "http://grader"),
        ("http://grader", "http://grader"),
        ("http://us er:s3cret@x", "(an address that cannot be read)"),
    ],
)
def test_credentials_are_left_out(url: str, expected: str) -> None:
    assert without_credentials(url) == expected


@pytest.mark.parametrize("password", ["s3cret", "s3/cret", "s3#cret", "s3?cret", "s3'cret", "s3@cret"])
def test_a_password_is_left_out_of_a_text_whatever_characters_it_has(password: str) -> None:
    message = redacted(f"no answer from http://user:{password}@grader:8000/v1: connection refused")
    assert message == "no answer from http://grader:8000/v1: connection refused"


def test_a_text_without_credentials_stays_as_it_is() -> None:
    message = "no answer from http://grader:8000/v1, ask admin@example.org"
    assert redacted(message) == message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://grader:8000/v1?key=s3cret#s3cret", "https://grader:8000/v1"),
        ("--endpoint=https://grader/v1?token=s3cret", "--endpoint=https://grader/v1"),
        ('{"url": "http://grader/v1#s3cret", "n": 1}', '{"url": "http://grader/v1", "n": 1}'),
        ("wss://grader/?token=s3cret", "(an address that cannot be read)"),
        ("redis://me:s3cret@grader/0", "redis://grader/0"),
        ("no address?", "no address?"),
    ],
)
def test_what_may_be_secret_in_an_address_is_not_shown_wherever_it_stands(text: str, expected: str) -> None:
    assert shown(text) == expected
