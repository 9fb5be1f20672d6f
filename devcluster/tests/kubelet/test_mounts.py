"""Mount paths in texts become directories of the pod."""

import pytest

from longshore_devcluster.kubelet.mounts import Mounts

MOUNTS = Mounts({"/data": "/pod/v/data", "/data/cache/": "/pod/v/cache", "/etc/app.conf": "/pod/v/conf/app.conf"})


@pytest.mark.parametrize(
    ("text", "rewritten"),
    [
        ("/data", "/pod/v/data"),
        ("/data/x", "/pod/v/data/x"),
        ("--out=/data/run,--in='/data'", "--out=/pod/v/data/run,--in='/pod/v/data'"),
        ("/data/cache/a /data/cached", "/pod/v/cache/a /pod/v/data/cached"),
        ("file:///data/x", "file:///pod/v/data/x"),
        ('{"path": "/data"}', '{"path": "/pod/v/data"}'),
        ("PYTHONPATH=/a:/data", "PYTHONPATH=/a:/pod/v/data"),
        ("cat /etc/app.conf;", "cat /pod/v/conf/app.conf;"),
    ],
)
def test_mount_path_is_replaced_the_longest_first(text: str, rewritten: str) -> None:
    assert MOUNTS.rewrite(text) == rewritten


@pytest.mark.parametrize(
    "text", ["/database", "/old/data", "data/x", "http://data/x", "/data-2", "/data.txt", "/etc/app.conf.d"]
)
def test_longer_names_are_left_alone(text: str) -> None:
    assert MOUNTS.rewrite(text) == text


def test_without_mounts_nothing_changes() -> None:
    assert Mounts({}).rewrite("/data") == "/data"


def test_archives_name_files_as_the_specification_does() -> None:
    argv = Mounts({"/data": "/pod.1/v"}).rewrite_exec(["tar", "cf", "-", "/data/file"])

    assert argv == ["tar", "cf", "-", r"--transform=flags=rSH;s,^pod\.1/v,data,", "/pod.1/v/file"]


def test_other_commands_of_an_exec_are_only_rewritten() -> None:
    assert MOUNTS.rewrite_exec(["tar", "xmf", "-", "-C", "/data"]) == ["tar", "xmf", "-", "-C", "/pod/v/data"]
