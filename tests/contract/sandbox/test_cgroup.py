"""Control groups: found, and made ready for groups below them; on files like the kernel's, and on the kernel's own."""

import contextlib
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from longshore_runtime.sandbox import cgroup
from longshore_runtime.sandbox.cases import CaseOutcome, StdioCase
from longshore_runtime.sandbox.layers import Layer, LayerUnavailable
from longshore_runtime.sandbox.sandbox import Sandbox
from tests.contract.sandbox.attacks import ATTACKS
from tests.contract.sandbox.world import LIMITS, World

_MOUNTS: Final = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))


def _group(directory: Path, controllers: str, handed_down: str = "", processes: str = "") -> Path:
    """A directory with the files that a kernel puts into a group."""
    directory.mkdir(exist_ok=True)
    (directory / "cgroup.controllers").write_text(f"{controllers}\n")
    (directory / "cgroup.subtree_control").write_text(f"{handed_down}\n")
    (directory / "cgroup.procs").write_text(processes)
    return directory


def test_the_own_group_is_found(tmp_path: Path) -> None:
    mount = _group(tmp_path, "cpu memory pids")
    membership = tmp_path / "membership"
    membership.write_text("5:pids:/other\n0::/pod/container\n")
    assert cgroup.own_group(mount, membership) == mount / "pod/container"
    membership.write_text("5:pids:/other\n")
    with pytest.raises(LayerUnavailable, match="no control group of version 2"):
        cgroup.own_group(mount, membership)
    with pytest.raises(LayerUnavailable, match="no control groups of version 2"):
        cgroup.own_group(tmp_path / "absent", membership)


def test_a_group_that_hands_its_controllers_down_is_used_as_it_is(tmp_path: Path) -> None:
    group = _group(tmp_path, "cpu memory pids", handed_down="memory pids")
    assert cgroup.parent_of_sandboxes(group, group) == group
    assert (group / "cgroup.subtree_control").read_text() == "memory pids\n"


def test_sandboxes_of_a_process_that_has_moved_are_made_beside_its_leaf(tmp_path: Path) -> None:
    group = _group(tmp_path, "memory pids", handed_down="memory pids")
    leaf = _group(group / "longshore-pod", "memory pids", processes="7\n")
    assert cgroup.parent_of_sandboxes(leaf, group) == group


def test_controllers_are_handed_down_where_they_are_not_yet(tmp_path: Path) -> None:
    group = _group(tmp_path, "cpu memory pids")
    assert cgroup.parent_of_sandboxes(group, group) == group
    assert (group / "cgroup.subtree_control").read_text() == "+memory +pids"


def test_a_group_that_lacks_controllers_or_is_closed_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(LayerUnavailable, match="is not given the controllers memory, pids"):
        cgroup.parent_of_sandboxes(_group(tmp_path, "cpu"), tmp_path)
    with pytest.raises(LayerUnavailable, match="cannot hand controllers down: No such file"):
        cgroup.parent_of_sandboxes(tmp_path / "absent", tmp_path)


def test_a_group_without_controllers_is_not_used(tmp_path: Path) -> None:
    with pytest.raises(LayerUnavailable):
        cgroup.Cgroup.create(tmp_path, "group", LIMITS)
    with pytest.raises(LayerUnavailable, match="is not writable"):
        cgroup.Cgroup.create(tmp_path / "absent", "group", LIMITS)


@pytest.fixture
def container() -> Iterator[tuple[Path, str]]:
    """A group of the kernel's with two processes in it, as a container's, and a controller that it is given."""
    with contextlib.ExitStack() as stack:
        mount, controller = _mount_with_a_controller()
        control = mount / "cgroup.subtree_control"
        try:
            if controller not in control.read_text().split():
                control.write_text(f"+{controller}")
                stack.callback(control.write_text, f"-{controller}")
            group = mount / f"longshore-test-{secrets.token_hex(4)}"
            group.mkdir()
        except OSError as error:
            pytest.skip(f"control groups at {mount} cannot be changed here: {error.strerror}")
        stack.callback(_remove, group)
        for _ in range(2):
            process = subprocess.Popen(["sleep", "60"])
            stack.callback(process.wait)
            stack.callback(process.kill)
            (group / "cgroup.procs").write_text(str(process.pid))
        yield group, controller


def test_the_kernel_hands_down_what_is_in_use_once_its_processes_have_moved(container: tuple[Path, str]) -> None:
    group, controller = container
    processes = set((group / "cgroup.procs").read_text().split())
    for _ in range(2):  # The second finds it done.
        assert cgroup.parent_of_sandboxes(group, group, {controller}, leaf="leaf") == group
    assert (group / "cgroup.procs").read_text() == ""
    assert set((group / "leaf/cgroup.procs").read_text().split()) == processes
    assert cgroup.parent_of_sandboxes(group / "leaf", group, {controller}, leaf="leaf") == group
    below = group / "below"
    below.mkdir()
    assert controller in (below / "cgroup.controllers").read_text().split()
    below.rmdir()


def test_a_group_of_somebody_else_is_left_as_it_is(container: tuple[Path, str]) -> None:
    group, controller = container
    with pytest.raises(LayerUnavailable, match="has processes, and is not the topmost group of this container"):
        cgroup.parent_of_sandboxes(group, group.parent, {controller}, leaf="leaf")
    assert len((group / "cgroup.procs").read_text().split()) == 2


def test_in_a_control_group_the_kernel_counts_the_memory_of_all_processes(
    available: frozenset[Layer], targets: World
) -> None:
    if Layer.CGROUP not in available:
        pytest.skip("this machine lacks Cgroup")
    with Sandbox({Layer.CGROUP}, LIMITS) as sandbox:
        for attack in (attack for attack in ATTACKS if attack.kind == "memory"):
            (result,) = sandbox.run(attack.program(targets.names), [StdioCase("", "contained")])
            assert result.outcome in {CaseOutcome.LIMIT, CaseOutcome.ERROR}, attack


def _remove(group: Path) -> None:
    for below in group.iterdir():
        if below.is_dir():
            below.rmdir()
    group.rmdir()


def _mount_with_a_controller() -> tuple[Path, str]:
    for mount in _MOUNTS:
        listed = mount / "cgroup.controllers"
        if listed.is_file() and (controllers := listed.read_text().split()):
            return mount, "memory" if "memory" in controllers else controllers[0]
    pytest.skip("no control groups of version 2 with a controller are mounted here")
