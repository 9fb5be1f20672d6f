"""Namespaces: a root with nothing but Python in it, and per program an own /tmp, /proc and set of processes.

A zygote enters once what a program cannot change (root, network, host name); every program gets fresh ones of what it
can (mounts, processes, IPC). Without the right to make namespaces directly, they are made in a user namespace.
"""

import os
import signal
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from longshore_runtime.sandbox import linux
from longshore_runtime.sandbox.layers import LayerUnavailable
from longshore_runtime.sandbox.visible import package_paths, python_paths

_DEVICES: Final = ("null", "zero", "full", "random", "urandom")
_OLD_ROOT: Final = "/old"
_SHARED: Final = linux.CLONE_NEWNS | linux.CLONE_NEWNET | linux.CLONE_NEWUTS
_OWN: Final = linux.CLONE_NEWNS | linux.CLONE_NEWPID | linux.CLONE_NEWIPC
_ROOT_INODES: Final = 1024
_TMP_INODES: Final = 1024
_PLAIN: Final = linux.MS_NOSUID | linux.MS_NODEV


def enter_shared(import_paths: Sequence[str], owner: int) -> bool:
    """Leave the host: read-only root, no network, own host name. Returns whether the user namespace is an own one.

    `owner`: the user, besides this process's, that programs will run as.

    Raises:
        LayerUnavailable: the machine does not allow it.
    """
    try:
        in_user_namespace = _unshare(list(dict.fromkeys((os.getuid(), owner))))
        linux.mount("none", "/", None, linux.MS_REC | linux.MS_PRIVATE)
        _change_root(python_paths(import_paths), package_paths(import_paths))
        socket.sethostname("sandbox")
    except OSError as error:
        raise LayerUnavailable(f"namespaces are not permitted: {error.strerror or error}") from error
    return in_user_namespace


def enter_own(file_bytes: int, owner: int) -> None:
    """Give one program its own mounts, processes (of children only) and IPC, and an empty /tmp of `file_bytes`."""
    linux.unshare(_OWN)
    options = f"mode=0700,uid={owner},gid={owner},size={file_bytes},nr_inodes={_TMP_INODES}"
    linux.mount("tmpfs", "/tmp", "tmpfs", _PLAIN, options)


def cover_proc() -> None:
    """Show no processes but those of the new process namespace, in which the caller is."""
    flags = _PLAIN | linux.MS_NOEXEC
    try:
        linux.mount("proc", "/proc", "proc", flags, "subset=pid,hidepid=invisible")
    except OSError:
        # Container runtimes that hide parts of /proc also forbid to mount another: then there is none.
        linux.mount("tmpfs", "/proc", "tmpfs", flags | linux.MS_RDONLY, "size=4096,mode=0555")


def reap_for_ever() -> None:
    """Live as the first process of a program's namespace: its end is the end of them all."""
    linux.die_with_parent(signal.SIGKILL)
    linux.hide_process()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    while True:
        signal.sigwait({signal.SIGCHLD})
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                continue
        except ChildProcessError:
            continue


def _unshare(users: Sequence[int]) -> bool:
    try:
        linux.unshare(_SHARED)
        return False
    except PermissionError:
        _unshare_with_users(users)
        return True


def _unshare_with_users(users: Sequence[int]) -> None:
    """Leave for namespaces in a user namespace that has `users`, each as the same one outside.

    Of one user, a process may write the map itself; for more, somebody outside with the right to must.
    """
    if len(users) == 1:
        linux.unshare(_SHARED | linux.CLONE_NEWUSER)
        Path("/proc/self/setgroups").write_text("deny")
        _map_users("self", users)
        return
    left, ready = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ready)
        status = 1
        try:
            if os.read(left, 1):
                _map_users(str(os.getppid()), users)
                status = 0
        finally:
            os._exit(status)
    try:
        linux.unshare(_SHARED | linux.CLONE_NEWUSER)
        os.write(ready, b"x")
    finally:
        os.close(left)
        os.close(ready)
        _, status = os.waitpid(child, 0)
    if status:
        raise OSError(f"a user namespace cannot have the users {list(users)}")


def _map_users(process: str, users: Sequence[int]) -> None:
    text = "\n".join(f"{user} {user} 1" for user in users)
    for name in ("uid_map", "gid_map"):
        Path(f"/proc/{process}/{name}").write_text(text)


def _change_root(visible: Sequence[str], covered: Sequence[str]) -> None:
    new_root = "/tmp" if Path("/tmp").is_dir() else "/mnt"
    linux.mount("tmpfs", new_root, "tmpfs", _PLAIN, f"mode=0755,size=1m,nr_inodes={_ROOT_INODES}")
    Path(new_root + _OLD_ROOT).mkdir()
    linux.change_root(new_root, _OLD_ROOT)
    for path in _outermost(visible):
        _show(path)
    for path in covered:
        if Path(path).is_dir():  # As seen from the new root.
            linux.mount("tmpfs", path, "tmpfs", _PLAIN, "size=4096,mode=0555")
    for device in _DEVICES:
        _bind(f"/dev/{device}")
    for directory in ("/tmp", "/proc"):
        Path(directory).mkdir()
    Path("/dev/shm").symlink_to("/tmp")
    # Kept visible to mount another, which needs one; a program's own covers it.
    linux.mount(f"{_OLD_ROOT}/proc", "/proc", None, linux.MS_BIND | linux.MS_REC)
    linux.unmount(_OLD_ROOT)
    Path(_OLD_ROOT).rmdir()
    linux.make_tree_read_only("/")


def _outermost(paths: Sequence[str]) -> list[str]:
    return [path for path in paths if not any(str(parent) in paths for parent in Path(path).parents)]


def _show(path: str) -> None:
    host = Path(_OLD_ROOT + path)
    if host.is_symlink():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).symlink_to(os.readlink(host))  # noqa: PTH115 - the text of the link, unresolved
    else:
        _bind(path)


def _bind(path: str) -> None:
    target, host = Path(path), _OLD_ROOT + path
    if Path(host).is_dir():
        target.mkdir(parents=True, exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    linux.mount(host, path, None, linux.MS_BIND | linux.MS_REC)
