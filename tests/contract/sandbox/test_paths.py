"""The paths that exist for programs without a root directory of their own."""

import json
from pathlib import Path

import pytest

from longshore_runtime.sandbox import linux
from longshore_runtime.sandbox.layers import LayerUnavailable
from longshore_runtime.sandbox.supervisor import Supervisor
from longshore_runtime.sandbox.visible import DEVICES, ShownPaths, package_paths, shown_paths

_SHOWN = ShownPaths(
    named=frozenset({"/lib", "/usr/lib", "/usr/lib/python"}),
    real=frozenset({"/usr/lib", "/usr/python/os.py"}),
    ancestors=frozenset({"/", "/usr", "/usr/python"}),
)


@pytest.mark.parametrize(
    ("path", "may_be", "is_shown", "is_ancestor"),
    [
        ("/usr/lib", True, True, False),
        ("/usr/lib/a/b.so", True, True, False),
        ("/lib/a", True, False, False),
        ("/usr/library", False, False, False),
        ("/usr", True, False, True),
        ("/", True, False, True),
        ("/usr/python", True, False, True),
        ("/usr/python/os.py", False, True, False),
        ("/usr/python/site-packages", False, False, False),
        ("/etc/shadow", False, False, False),
        ("//usr/lib", False, False, False),
        ("lib", False, False, False),
        ("", False, False, False),
    ],
)
def test_a_path_is_shown_if_a_shown_one_is_above_it(path: str, may_be: bool, is_shown: bool, is_ancestor: bool) -> None:
    assert (_SHOWN.may_have(path), _SHOWN.has(path), _SHOWN.is_ancestor(path)) == (may_be, is_shown, is_ancestor)


def test_python_and_what_is_asked_for_are_shown_and_other_packages_are_not(tmp_path: Path) -> None:
    shown = shown_paths([str(tmp_path)])
    import_path = str(tmp_path.resolve())
    for path in (str(Path(json.__file__).resolve()), f"{import_path}/helpful.py", *DEVICES):
        assert shown.may_have(path), path
        assert shown.has(path), path
    for path in ("/etc/passwd", "/proc/self/environ", "/dev/shm/x", "/dev/sda", "/var/run/secrets/token", "/root/.ssh"):
        assert not shown.may_have(path), path
    assert not any(shown.has(f"{path}/package/module.py") for path in package_paths([]))


def test_a_kernel_that_cannot_add_and_answer_at_once_is_no_ground_for_a_supervisor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(linux, "release", lambda: (5, 13))
    with pytest.raises(LayerUnavailable, match=r"need Linux 5\.14"):
        Supervisor(-1, -1, _SHOWN, has_own_user=False)
    monkeypatch.setattr(linux, "release", lambda: (5, 14))
    Supervisor(-1, -1, _SHOWN, has_own_user=False)
