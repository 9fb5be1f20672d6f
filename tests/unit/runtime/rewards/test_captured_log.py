"""The log of a reward pod is kept until the coordinator fetches it, as far as there is room."""

from longshore_runtime.rewards.captured_log import MAX_LOG_BYTES, CapturedLog


def test_each_byte_is_taken_once() -> None:
    captured = CapturedLog()
    captured.add(b"one\n")
    captured.add(b"two\n")
    assert captured.take() == b"one\ntwo\n"
    assert captured.take() == b""


def test_log_without_room_keeps_its_end_and_says_what_is_missing() -> None:
    captured = CapturedLog()
    captured.add(b"x" * MAX_LOG_BYTES)
    captured.add(b"the end\n")
    first, rest = captured.take().split(b"\n", 1)
    assert first == b"... 8 bytes are missing here"
    assert len(rest) == MAX_LOG_BYTES and rest.endswith(b"xthe end\n")
    captured.add(b"more\n")
    assert captured.take() == b"more\n"
