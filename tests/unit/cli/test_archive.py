"""Copies arrive whole or not at all."""

import contextlib
import errno
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore_client.transfer import archive
from longshore_client.transfer.archive import ArchiveError, CutOff, main, pack, unpack
from tests.properties import examples


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A small checkpoint."""
    root = tmp_path / "model"
    (root / "sub").mkdir(parents=True)
    (root / "config.json").write_text("{}")
    (root / "sub" / "weights.bin").write_bytes(bytes(range(256)) * 5000)
    (root / "empty").touch()
    return root


def packed(root: Path) -> bytes:
    out = io.BytesIO()
    pack(root, out)
    return out.getvalue()


def contents(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_a_directory_arrives_as_it_was(model: Path, tmp_path: Path) -> None:
    assert unpack(io.BytesIO(packed(model)), tmp_path / "out" / "copy") == 3
    assert contents(tmp_path / "out" / "copy") == contents(model)


def test_a_single_file_arrives_under_the_name_of_the_destination(model: Path, tmp_path: Path) -> None:
    assert unpack(io.BytesIO(packed(model / "config.json")), tmp_path / "new.json") == 1
    assert (tmp_path / "new.json").read_text() == "{}"


@settings(max_examples=examples(25), deadline=None)
@given(
    st.dictionaries(st.from_regex(r"[a-zäß][a-z .]{0,8}[a-z]", fullmatch=True), st.binary(max_size=30_000), min_size=1)
)
def test_any_files_arrive(tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes]) -> None:
    root = tmp_path_factory.mktemp("files")
    for name, data in files.items():
        (root / name).write_bytes(data)
    target = tmp_path_factory.mktemp("target") / "copy"
    unpack(io.BytesIO(packed(root)), target)
    assert contents(target) == files


def test_progress_runs_to_the_announced_total(model: Path, tmp_path: Path) -> None:
    sent: list[tuple[int, int]] = []
    got: list[tuple[int, int]] = []
    out = io.BytesIO()
    pack(model, out, lambda *counts: sent.append(counts))
    unpack(io.BytesIO(out.getvalue()), tmp_path / "copy", progress=lambda *counts: got.append(counts))
    total = 2 + 256 * 5000
    assert sent[-1] == got[-1] == (total, total)


def test_what_exists_is_kept_unless_forced(model: Path, tmp_path: Path) -> None:
    target = tmp_path / "copy"
    target.mkdir()
    (target / "mine").write_text("mine")
    with pytest.raises(ArchiveError, match=r"exists already.*--force"):
        unpack(io.BytesIO(packed(model)), target)
    assert contents(target) == {"mine": b"mine"}
    unpack(io.BytesIO(packed(model)), target, force=True)
    assert contents(target) == contents(model)


@pytest.mark.parametrize("place", [".", "..", "sub/..", "{home}", "/"])
def test_what_others_are_in_is_never_replaced(
    model: Path, tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "project" / "sub").mkdir(parents=True)
    (tmp_path / "home").mkdir()
    for directory in ("project", "home"):
        (tmp_path / directory / "thesis.tex").write_text("mine")
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    before = contents(tmp_path)
    with pytest.raises(ArchiveError, match="name a directory of its own in it"):
        unpack(io.BytesIO(packed(model)), Path(place.format(home=tmp_path / "home")), force=True)
    assert contents(tmp_path) == before


def test_a_directory_is_not_replaced_by_a_file(model: Path, tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "mine.csv").write_text("mine")
    with pytest.raises(ArchiveError, match="results is a directory, and what comes is one file"):
        unpack(io.BytesIO(packed(model / "config.json")), tmp_path / "results", force=True)
    assert contents(tmp_path / "results") == {"mine.csv": b"mine"}


@pytest.fixture
def existing(tmp_path: Path) -> Path:
    """A directory that is to be replaced."""
    target = tmp_path / "out" / "copy"
    target.mkdir(parents=True)
    (target / "mine").write_text("mine")
    return target


def let_renames_fail(monkeypatch: pytest.MonkeyPatch, fails: Callable[[Path, Path], bool]) -> None:
    """Those for which `fails(from, to)`."""
    rename = Path.rename

    def refuse(path: Path, to: Path) -> Path:
        if fails(path, to):
            raise OSError(errno.EIO, "the disk fails")
        return rename(path, to)

    monkeypatch.setattr(Path, "rename", refuse)


def test_what_was_there_is_kept_when_the_last_step_fails(
    model: Path, existing: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_renames_fail(monkeypatch, lambda path, to: to == existing and path.name != "before")
    with pytest.raises(ArchiveError, match="copy cannot be written: the disk fails"):
        unpack(io.BytesIO(packed(model)), existing, force=True)
    assert contents(tmp_path / "out") == {"copy/mine": b"mine"}
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["copy"]


def test_nothing_is_lost_when_it_cannot_be_put_back_either(
    model: Path, existing: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_renames_fail(monkeypatch, lambda path, to: to == existing)
    with pytest.raises(ArchiveError, match="copy cannot be written: the disk fails"):
        unpack(io.BytesIO(packed(model)), existing, force=True)
    assert list(contents(tmp_path / "out").values()) == [b"mine"]


def test_a_home_behind_a_link_is_not_replaced(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "home").symlink_to("disk")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with pytest.raises(ArchiveError, match="name a directory of its own in it"):
        unpack(io.BytesIO(packed(model)), tmp_path / "disk", force=True)


def test_a_directory_arrives_by_its_link_too(model: Path, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "shard").write_text("heavy")
    (model / "weights").symlink_to(tmp_path / "disk")
    unpack(io.BytesIO(packed(model)), tmp_path / "copy")
    assert contents(tmp_path / "copy").keys() == {"config.json", "empty", "sub/weights.bin", "weights/shard"}


@pytest.mark.parametrize(
    ("target", "sentence"),
    [("nothing", "is a link to what does not exist"), ("..", "is a link to a directory around it")],
)
def test_a_link_that_leads_to_no_file_is_named(model: Path, target: str, sentence: str) -> None:
    (model / "sub" / "link").symlink_to(target)
    with pytest.raises(ArchiveError, match=f"sub/link {sentence}: remove the link"):
        packed(model)


def test_what_comes_out_of_a_storage_leaves_out_links_to_a_machine_that_is_gone(
    model: Path, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    (model / "wandb").mkdir()
    (model / "wandb" / "debug.log").symlink_to("/tmp/of-another-machine/debug.log")
    assert main(["send", str(model.parent), model.name]) == 0
    unpack(io.BytesIO(capfdbinary.readouterr().out), tmp_path / "copy")
    assert contents(tmp_path / "copy").keys() == {"config.json", "empty", "sub/weights.bin"}
    (model / "sub" / "shard.bin").symlink_to("/tmp/of-another-machine/shard.bin")
    assert main(["send", str(model.parent), model.name]) == 1, "a part of the model is missing"


def test_what_a_job_has_not_finished_stays_in_its_storage(
    model: Path, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    for name in ("checkpoints/.unfinished-000007/weights.bin", "samples/.step-000007.parquet"):
        (model / name).parent.mkdir(parents=True)
        (model / name).touch()
    assert main(["send", str(model.parent), model.name]) == 0
    unpack(io.BytesIO(capfdbinary.readouterr().out), tmp_path / "copy")
    assert contents(tmp_path / "copy").keys() == {"config.json", "empty", "sub/weights.bin"}


@pytest.mark.parametrize("added", [b"more" * 1_000_000, b"less"])
def test_a_file_that_changes_its_size_during_the_copy_arrives(model: Path, tmp_path: Path, added: bytes) -> None:
    last = model / "sub" / "weights.bin"
    totals = []

    def write(done_bytes: int, total_bytes: int) -> None:
        if not totals:
            last.write_bytes(added)
        totals.append(total_bytes)

    out = io.BytesIO()
    pack(model, out, write)
    unpack(io.BytesIO(out.getvalue()), tmp_path / "copy")
    assert contents(tmp_path / "copy") == contents(model)
    assert totals[-1] == 2 + len(added)


def test_a_file_that_a_job_deletes_during_the_copy_is_named(model: Path, tmp_path: Path) -> None:
    def delete(done_bytes: int, total_bytes: int) -> None:
        (model / "sub" / "weights.bin").unlink(missing_ok=True)

    with pytest.raises(ArchiveError, match=r"sub/weights.bin was deleted during the copy: copy it again"):
        pack(model, io.BytesIO(), delete)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_volume_without_room_for_a_directory_gets_a_sentence(
    code: int, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path, **options: object) -> None:
        raise OSError(code, "there is no room")

    monkeypatch.setattr(Path, "mkdir", fail)
    with pytest.raises(ArchiveError, match=rf"^there is no room in {tmp_path}: [\d,]+ bytes are free; make room"):
        unpack(io.BytesIO(packed(model)), tmp_path / "new" / "deep" / "copy")


@pytest.mark.parametrize("kept", [0.0, 0.1, 0.5, 0.9])
def test_a_copy_that_was_cut_off_leaves_nothing(model: Path, tmp_path: Path, kept: float) -> None:
    whole = packed(model)
    (tmp_path / "out").mkdir()
    with pytest.raises(CutOff, match=r"^the copy was cut off before its end$"):
        unpack(io.BytesIO(whole[: int(len(whole) * kept)]), tmp_path / "out" / "copy")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_changed_byte_is_noticed(model: Path, tmp_path: Path) -> None:
    whole = bytearray(packed(model))
    whole[whole.index(bytes(range(256))) + 7] ^= 1
    with pytest.raises(ArchiveError, match=r"checksum of 'sub/weights.bin' differs"):
        unpack(io.BytesIO(bytes(whole)), tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def archive_with(member: tarfile.TarInfo, data: bytes = b"x") -> io.BytesIO:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w|") as tar:
        archive._add_json(tar, archive.INDEX, {"bytes": 1, "isFile": False})
        member.size = len(data) if member.isreg() else 0
        tar.addfile(member, io.BytesIO(data))
    return io.BytesIO(out.getvalue())


def archive_of(*members: tuple[str, bytes]) -> io.BytesIO:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w|") as tar:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return io.BytesIO(out.getvalue())


INDEX = (archive.INDEX, b'{"bytes": 1, "isFile": false}')
INDEX_OF_TWO = (archive.INDEX, b'{"bytes": 2, "isFile": false}')
HUGE = (archive.INDEX, b'{"bytes": 99999999999999999, "isFile": false}')


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ((INDEX, (archive.SUMS, b"{}")), "holds no file, or not a single checksum"),
        ((INDEX, ("a", b"x"), (archive.SUMS, b"{}")), "checksum of 'a' differs"),
        ((INDEX, ("a", b"x"), (archive.SUMS, b"")), "damaged"),
        ((INDEX, ("a", b"x"), (archive.SUMS, b"[1]")), "damaged"),
        ((("a", b"x"), INDEX), "damaged"),
        (((archive.INDEX, b"{}"), ("a", b"x")), "damaged"),
        (((archive.INDEX, b"null"),), "damaged"),
        (((archive.INDEX, b'{"bytes": 1, "isFile": true}'), (archive.SUMS, b"{}")), "holds no file"),
        ((INDEX, INDEX_OF_TWO, ("a", b"x"), ("a", b"x")), "cannot be written"),
        ((INDEX, ("a", b"xy")), "^the copy holds more than it announced: copy it again$"),
        ((INDEX, ("a", b"x"), ("b", b"y")), "^the copy holds more than it announced: copy it again$"),
        ((INDEX, ("a", b"x"), HUGE), "there is no room in"),
        ((INDEX, (archive.INDEX, b" " * 2000 + INDEX[1])), "damaged"),
        ((INDEX, ("a", b"x"), (archive.SUMS, b" " * 2000 + b"{}")), "damaged"),
        ((HUGE,), "99,999,999,999,999,999 bytes are needed"),
    ],
)
def test_an_archive_that_proves_nothing_is_refused(
    tmp_path: Path, members: tuple[tuple[str, bytes], ...], message: str
) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(ArchiveError, match=message):
        unpack(archive_of(*members), tmp_path / "out" / "copy")
    assert list((tmp_path / "out").iterdir()) == []


@given(st.binary(max_size=3_000), st.integers(0, 3_000))
def test_no_stream_is_too_ugly_for_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, noise: bytes, place: int
) -> None:
    root = tmp_path_factory.mktemp("ugly")
    (root / "file").write_bytes(b"x" * 100)
    whole = packed(root / "file")
    with contextlib.suppress(ArchiveError):
        unpack(io.BytesIO(whole[:place] + noise + whole[place:]), root / "copy")


@pytest.mark.parametrize(
    "fields",
    [
        {"path": "a\0b"},
        {"size": "many"},
        {"GNU.sparse.map": "x,y", "GNU.sparse.size": "1"},
        {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "z"},
    ],
)
def test_headers_that_no_tool_writes_get_a_sentence(tmp_path: Path, fields: dict[str, str]) -> None:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar:
        index = tarfile.TarInfo(archive.INDEX)
        content = json.dumps({"bytes": 1, "isFile": True}).encode()
        index.size = len(content)
        tar.addfile(index, io.BytesIO(content))
        member = tarfile.TarInfo("file")
        member.pax_headers = fields
        tar.addfile(member)
    with pytest.raises(ArchiveError):
        unpack(io.BytesIO(stream.getvalue()), tmp_path / "copy")
    assert list(tmp_path.iterdir()) == []


def test_an_index_that_is_nested_without_end_gets_a_sentence(tmp_path: Path) -> None:
    content = b"[" * 100_000
    index = tarfile.TarInfo(archive.INDEX)
    index.size = len(content)
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        tar.addfile(index, io.BytesIO(content))
    with pytest.raises(ArchiveError, match="damaged"):
        unpack(io.BytesIO(stream.getvalue()), tmp_path / "copy")


@pytest.mark.parametrize("name", ["../escaped", "/tmp/escaped", "a/../../escaped"])
def test_no_member_leaves_the_destination(tmp_path: Path, name: str) -> None:
    with pytest.raises(ArchiveError, match="would leave the destination"):
        unpack(archive_with(tarfile.TarInfo(name)), tmp_path / "out" / "copy")
    assert not list(tmp_path.rglob("escaped"))


def test_links_are_refused(tmp_path: Path) -> None:
    link = tarfile.TarInfo("link")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    with pytest.raises(ArchiveError):
        unpack(archive_with(link), tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


@pytest.fixture
def rounds(tmp_path: Path) -> Path:
    """Output of a job."""
    root = tmp_path / "output"
    (root / "rounds").mkdir(parents=True)
    for step in range(1, 6):
        (root / "rounds" / f"round-00000{step}.json.gz").write_text(str(step))
    (root / "rounds" / ".round-000006.json.gz").write_text("half")
    (root / "profile.json").write_text("{}")
    (root / "weights").write_text("heavy")
    return root


@pytest.mark.parametrize(
    ("choices", "steps"),
    [
        ([{"match": "rounds/round-*", "newest": 2}], [4, 5]),
        ([{"match": "rounds/round-*", "newest": 9}], [1, 2, 3, 4, 5]),
        (
            [
                {
                    "match": "rounds/round-*",
                    "first": "rounds/round-000002.json.gz",
                    "last": "rounds/round-000003.json.gz",
                }
            ],
            [2, 3],
        ),
        ([{"match": "rounds/round-*", "first": "rounds/round-000005.json.gz"}], [5]),
        ([{"match": "rounds/round-*", "newest": 1}, {"match": "rounds/round-000001*"}], [1, 5]),
    ],
)
def test_a_choice_of_files_arrives_and_nothing_else(
    rounds: Path, tmp_path: Path, choices: list[archive.FileSelection], steps: list[int]
) -> None:
    out = io.BytesIO()
    pack(rounds, out, choices=[*choices, {"match": "profile.json"}, {"match": "there-is-none"}])
    unpack(io.BytesIO(out.getvalue()), tmp_path / "copy")
    names = {f"rounds/round-00000{step}.json.gz" for step in steps}
    assert contents(tmp_path / "copy").keys() == names | {"profile.json"}


def test_a_choice_of_nothing_is_reported(rounds: Path) -> None:
    with pytest.raises(ArchiveError, match=r"^output holds none of the files that were asked for$"):
        pack(rounds, io.BytesIO(), choices=[{"match": "samples/*"}])
