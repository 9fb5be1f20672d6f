"""A published directory changes as a whole."""

from pathlib import Path

from longshore_devcluster.kubelet.files import File, publish


def shown(directory: Path) -> dict[str, str]:
    names = [path for path in directory.rglob("*") if not path.relative_to(directory).parts[0].startswith("..")]
    return {str(path.relative_to(directory)): path.read_text() for path in names if path.is_file()}


def test_files_appear_change_and_vanish(tmp_path: Path) -> None:
    publish(tmp_path, {"a": File(b"1"), "b": File(b"2"), "sub/c": File(b"3")})
    assert (tmp_path / "sub" / "c").read_text() == "3"

    publish(tmp_path, {"a": File(b"new"), "d": File(b"4")})

    assert shown(tmp_path) == {"a": "new", "d": "4"}


def test_nothing_is_touched_when_nothing_changed(tmp_path: Path) -> None:
    files = {"a": File(b"1", 0o400)}
    assert publish(tmp_path, files)
    before = (tmp_path / "..data").readlink()

    assert not publish(tmp_path, files)
    assert (tmp_path / "..data").readlink() == before


def test_all_files_change_in_one_step(tmp_path: Path) -> None:
    publish(tmp_path, {"a": File(b"old"), "b": File(b"old")})
    data = tmp_path / "..data"
    old = data.resolve()

    publish(tmp_path, {"a": File(b"new"), "b": File(b"new")})

    # Both visible names lead through one link, which now leads elsewhere; the old set is gone.
    assert {(tmp_path / name).readlink().parts[0] for name in "ab"} == {"..data"}
    assert data.resolve() != old
    assert not old.exists()


def test_modes_are_kept(tmp_path: Path) -> None:
    publish(tmp_path, {"secret": File(b"x", 0o400)})

    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o400


def test_an_empty_set_is_an_empty_directory(tmp_path: Path) -> None:
    publish(tmp_path / "v", {})

    assert shown(tmp_path / "v") == {}
