"""Answers the calls with paths of a program that has no root directory of its own.

Landlock governs what such a program opens, but not what it learns about paths: `stat` works on each of them, and even a
refused `open` says whether there is something. So the program's filter hands these calls to its keeper (user
notification of seccomp). The keeper reads the path from the program's memory, once, and performs the call itself, in
place of the program. What is not shown to programs is absent for them, and nothing but the null device can be written.
"""

import contextlib
import errno
import fcntl
import os
import stat
import struct
from collections.abc import Iterator
from typing import Final

from longshore_runtime.sandbox import linux
from longshore_runtime.sandbox.layers import LayerUnavailable
from longshore_runtime.sandbox.syscalls import ALLOWED, CHECKED, SUPERVISED
from longshore_runtime.sandbox.visible import ShownPaths

_RECEIVE: Final = 0xC050_2100  # SECCOMP_IOCTL_NOTIF_RECV
_SEND: Final = 0xC018_2101  # SECCOMP_IOCTL_NOTIF_SEND
_ADD_DESCRIPTOR: Final = 0x4018_2103  # SECCOMP_IOCTL_NOTIF_ADDFD
_AND_SEND: Final = 1 << 1
_AND_SEND_SINCE: Final = (5, 14)
_NOTIFICATION: Final = struct.Struct("=QIIiIQ6Q")
_RESPONSE: Final = struct.Struct("=QqiI")
_ADDED_DESCRIPTOR: Final = struct.Struct("=QIIII")
_PATH_BYTES: Final = 4096
_HIGHEST_ADDRESS: Final = 1 << 62
_INT: Final = 0xFFFF_FFFF
"""Mask of arguments of the type `int`; the other half of their registers is anything."""
_AT_FDCWD: Final = -100 & _INT
_AT_SYMLINK_NOFOLLOW: Final = 0x100
_ONLY_TO_READ: Final = os.O_CLOEXEC | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_OTHERWISE: Final = os.O_ACCMODE | os.O_CREAT | os.O_TRUNC | os.O_PATH
_WRITABLE: Final = "/dev/null"
_NAMES: Final = {
    number: name
    for name, number in (CHECKED.get(linux.MACHINE, {}) | ALLOWED.get(linux.MACHINE, {})).items()
    if name in SUPERVISED
}
_WITH_DIRECTORY: Final = ("openat", "newfstatat", "faccessat", "faccessat2", "readlinkat")


class Supervisor:
    """Supervisor of one program, which has no children."""

    def __init__(self, listener: int, memory: int, shown: ShownPaths, has_own_user: bool) -> None:
        """Take `listener` and `memory`, the descriptors of the program's filter and memory.

        `has_own_user`: the program runs as another user than its keeper, and reads only what everybody may.

        Raises:
            LayerUnavailable: the machine does not allow it.
        """
        if linux.release() < _AND_SEND_SINCE:
            raise LayerUnavailable("without Namespaces, Seccomp and Landlock together need Linux 5.14")
        self.listener = listener
        self._memory = memory
        self._shown = shown
        self._has_own_user = has_own_user

    def answer(self) -> None:
        """Answer one call, once the listener is readable."""
        received = bytearray(_NOTIFICATION.size)
        try:
            fcntl.ioctl(self.listener, _RECEIVE, received)
        except FileNotFoundError:
            return  # A signal has interrupted the call, or the program has ended.
        call, _, _, number, _, _, *arguments = _NOTIFICATION.unpack(received)
        try:
            response = self._perform(call, _NAMES[number], arguments), 0
        except OSError as error:
            response = 0, -(error.errno or errno.EIO)
        if response[0] is not None:
            with contextlib.suppress(FileNotFoundError):  # As above.
                fcntl.ioctl(self.listener, _SEND, _RESPONSE.pack(call, *response, 0))

    def _perform(self, call: int, name: str, arguments: list[int]) -> int | None:
        """Return what the program's call returns, or None if it has been answered; raises OSError."""
        directory, address, first, second = arguments[:4] if name in _WITH_DIRECTORY else (_AT_FDCWD, *arguments[:3])
        path = self._read_path(address)
        if not path.startswith("/") and directory & _INT != _AT_FDCWD:
            raise PermissionError(errno.EPERM, "a path below a descriptor that only the program has")
        # The current directory is the root, and programs cannot change it.
        path = os.path.normpath("/" + path.lstrip("/")) if path else ""
        match name:
            case "open" | "openat":
                self._open(call, path, first & _INT)
                return None
            case "stat" | "lstat" | "newfstatat":
                is_link_meant = name == "lstat" or (name == "newfstatat" and bool(second & _AT_SYMLINK_NOFOLLOW))
                return self._stat(path, first, is_link_meant)
            case "access" | "faccessat" | "faccessat2":
                return self._access(path, first & _INT)
            case _:
                return self._read_link(path, first, second & _INT)

    def _open(self, call: int, path: str, flags: int) -> None:
        if flags & _OTHERWISE and path != _WRITABLE:
            raise PermissionError(errno.EACCES, path)
        with self._found(path, is_link_meant=bool(flags & os.O_NOFOLLOW)) as found:
            if self._shown.is_ancestor(_name(found)) or not self._is_readable(found):
                raise PermissionError(errno.EACCES, path)
            # Whatever there is, the keeper does not wait for it.
            opened = os.open(_reached(found), flags & (_ONLY_TO_READ | os.O_ACCMODE) | os.O_NONBLOCK)
        try:
            added = _ADDED_DESCRIPTOR.pack(call, _AND_SEND, opened, 0, flags & os.O_CLOEXEC)
            fcntl.ioctl(self.listener, _ADD_DESCRIPTOR, added)
        finally:
            os.close(opened)

    def _stat(self, path: str, address: int, is_link_meant: bool) -> int:
        with self._found(path, is_link_meant) as found:
            self._write(linux.raw_stat(found), address)
        return 0

    def _access(self, path: str, mode: int) -> int:
        with self._found(path, is_link_meant=False) as found:
            is_refused = bool(mode & os.W_OK) and path != _WRITABLE
            is_refused = is_refused or (bool(mode & os.R_OK) and not self._is_readable(found))
            if is_refused or not os.access(_reached(found), mode & os.X_OK):
                raise PermissionError(errno.EACCES, path)
        return 0

    def _read_link(self, path: str, address: int, size: int) -> int:
        with self._found(path, is_link_meant=True) as found:
            if not stat.S_ISLNK(os.fstat(found).st_mode):
                raise OSError(errno.EINVAL, path)
            text = os.fsencode(os.readlink("", dir_fd=found))[:size]
        self._write(text, address)
        return len(text)

    def _is_readable(self, found: int) -> bool:
        if self._has_own_user:
            return bool(os.fstat(found).st_mode & stat.S_IROTH)
        return os.access(_reached(found), os.R_OK)

    @contextlib.contextmanager
    def _found(self, path: str, is_link_meant: bool) -> Iterator[int]:
        """Yield a descriptor of what is at a path.

        What is not shown is not looked for, so that time tells nothing either.
        """
        if not self._shown.may_have(path):
            raise FileNotFoundError(errno.ENOENT, path)
        try:
            found = os.open(path, os.O_PATH | os.O_CLOEXEC | (os.O_NOFOLLOW if is_link_meant else 0))
        except OSError as error:
            raise FileNotFoundError(errno.ENOENT, path) from error
        try:
            name = _name(found)
            if not (self._shown.has(name) or self._shown.is_ancestor(name)):
                raise FileNotFoundError(errno.ENOENT, path)
            yield found
        finally:
            os.close(found)

    def _read_path(self, address: int) -> str:
        """Return the path as it is now; what the program changes later does not matter."""
        with _faults(address):
            text, end, _ = os.pread(self._memory, _PATH_BYTES, address).partition(b"\0")
        if not end:
            raise OSError(errno.ENAMETOOLONG, "path")
        return os.fsdecode(text)

    def _write(self, content: bytes, address: int) -> None:
        with _faults(address):
            os.pwrite(self._memory, content, address)


@contextlib.contextmanager
def _faults(address: int) -> Iterator[None]:
    """Raise EFAULT for errors of the block, as the kernel does where there is no such memory."""
    if address > _HIGHEST_ADDRESS:
        raise OSError(errno.EFAULT, "address")
    try:
        yield
    except OSError as error:
        raise OSError(errno.EFAULT, "address") from error


def _reached(descriptor: int) -> str:
    return f"/proc/self/fd/{descriptor}"


def _name(descriptor: int) -> str:
    """Return the path, without links."""
    return os.readlink(_reached(descriptor))  # noqa: PTH115 - for every call of every program
