"""Stored logs are read back as they were written, whole or from their end."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from longshore_devcluster.kubelet.logs import LogOptions, LogWatch, last_lines, read_log
from longshore_devcluster.kubelet.shim import Log
from longshore_kube.times import parse_time

lines = st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n"), max_size=50), max_size=20)


def write(path: Path, texts: list[str]) -> None:
    path.unlink(missing_ok=True)
    log = Log(str(path))
    for text in texts:
        log.write("stdout", text.encode() + b"\n")


async def read(path: Path, options: LogOptions, watch: LogWatch | None = None) -> str:
    return b"".join([block async for block in read_log(path, options, watch)]).decode()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=lines, num_lines=st.integers(0, 25))
async def test_tail_is_the_last_lines(tmp_path: Path, texts: list[str], num_lines: int) -> None:
    write(tmp_path / "log", texts)

    tail = await read(tmp_path / "log", LogOptions(tail_lines=num_lines))

    assert tail == "".join(text + "\n" for text in texts[len(texts) - min(num_lines, len(texts)) :])


async def test_output_arriving_in_pieces_is_one_line(tmp_path: Path) -> None:
    log = Log(str(tmp_path / "log"))
    for piece in (b"one ", b"line\ntwo", b""):
        log.write("stdout", piece)
    log.finish()

    assert await read(tmp_path / "log", LogOptions()) == "one line\ntwo"


async def test_lines_older_than_asked_for_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(
        "2030-01-01T00:00:00.000000001Z stdout F old\n2030-01-01T00:00:10.500000000Z stderr F new\n"
    )

    assert await read(tmp_path / "log", LogOptions(since_s=parse_time("2030-01-01T00:00:10Z").timestamp())) == "new\n"


async def test_follower_gets_what_is_written_later_and_ends_with_the_container(tmp_path: Path) -> None:
    watch = LogWatch()
    log = Log(str(tmp_path / "log"))
    log.write("stdout", b"first\n")
    blocks = read_log(tmp_path / "log", LogOptions(follow=True), watch)
    assert await anext(blocks) == b"first\n"

    log.write("stdout", b"second\n")
    watch.changed.notify()
    assert await anext(blocks) == b"second\n"
    log.write("stdout", b"third\n")
    watch.finish()

    assert await anext(blocks) == b"third\n"
    with pytest.raises(StopAsyncIteration):
        await anext(blocks)


async def test_container_that_wrote_nothing_has_an_empty_log(tmp_path: Path) -> None:
    assert await read(tmp_path / "log", LogOptions(tail_lines=5)) == ""


def test_last_words_are_bounded_in_lines_and_bytes(tmp_path: Path) -> None:
    write(tmp_path / "log", [str(number) for number in range(200)])

    assert last_lines(tmp_path / "log", 2, 1000) == "198\n199\n"
    assert last_lines(tmp_path / "log", 80, 4) == "199\n"
