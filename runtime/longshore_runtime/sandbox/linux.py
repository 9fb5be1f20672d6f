"""System calls that Python's standard library lacks, by ctypes: thin, typed, raising OSError."""

import ctypes
import mmap
import os
import platform
import re
import struct
from typing import Final

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_LIBC.syscall.restype = ctypes.c_long
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
_MAP_FAILED: Final = ctypes.c_void_p(-1).value

CLONE_NEWNS: Final = 0x0002_0000
CLONE_NEWUTS: Final = 0x0400_0000
CLONE_NEWIPC: Final = 0x0800_0000
CLONE_NEWUSER: Final = 0x1000_0000
CLONE_NEWPID: Final = 0x2000_0000
CLONE_NEWNET: Final = 0x4000_0000

MS_RDONLY: Final = 0x1
MS_NOSUID: Final = 0x2
MS_NODEV: Final = 0x4
MS_NOEXEC: Final = 0x8
MS_BIND: Final = 0x1000
MS_REC: Final = 0x4000
MS_PRIVATE: Final = 0x4_0000
_MNT_DETACH: Final = 2

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_DUMPABLE: Final = 4
_PR_CAPBSET_DROP: Final = 24
_PR_SET_CHILD_SUBREAPER: Final = 36
_PR_SET_NO_NEW_PRIVS: Final = 38
_PR_CAP_AMBIENT: Final = 47
_PR_CAP_AMBIENT_CLEAR_ALL: Final = 4
_CAPABILITY_VERSION_3: Final = 0x2008_0522

MACHINE: Final = platform.machine()
# Numbers that differ between machines; those from 424 on are the same everywhere.
_SYS: Final = {
    "x86_64": {"pivot_root": 155, "capset": 126, "seccomp": 317, "fstat": 5},
    "aarch64": {"pivot_root": 41, "capset": 91, "seccomp": 277, "fstat": 80},
}.get(MACHINE, {})
_SYS_MOUNT_SETATTR: Final = 442
_AT_RECURSIVE: Final = 0x8000
_AT_FDCWD: Final = -100
_STAT_BYTES: Final = {"x86_64": 144, "aarch64": 128}.get(MACHINE, 0)
_SA_SIGINFO: Final = 0x4
_SA_NODEFER: Final = 0x4000_0000
_SA_RESTART: Final = 0x1000_0000


class _SignalAction(ctypes.Structure):
    """The C library's `struct sigaction`."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_char * 128),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


def _checked(result: int, what: str) -> int:
    if result < 0:
        errno = ctypes.get_errno()
        raise OSError(errno, f"{what}: {os.strerror(errno)}")
    return result


def syscall(what: str, number: int, *arguments: int | bytes | ctypes.Array[ctypes.c_char] | None) -> int:
    """Return a raw system call; integers are passed as 64 bits. Raises OSError that names `what`."""
    wide = [ctypes.c_long(argument) if isinstance(argument, int) else argument for argument in arguments]
    return _checked(_LIBC.syscall(ctypes.c_long(number), *wide), what)


def known_syscall(name: str) -> int:
    """Return the number of a system call; raises OSError on a machine that this module does not know."""
    if name not in _SYS:
        raise OSError(f"{name}: system calls of {MACHINE} are not known")
    return _SYS[name]


def release() -> tuple[int, ...]:
    """Return the kernel's version: two numbers."""
    return tuple(int(part) for part in re.findall(r"\d+", os.uname().release)[:2])


def unshare(flags: int) -> None:
    """Leave the given namespaces for fresh ones."""
    _checked(_LIBC.unshare(ctypes.c_int(flags)), "unshare")


def mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    """Mount a file system with the system call of Linux."""
    _checked(
        _LIBC.mount(
            source.encode(), target.encode(), kind.encode() if kind else None, ctypes.c_ulong(flags), options.encode()
        ),
        f"mount {target}",
    )


def make_tree_read_only(path: str) -> None:
    """Make the mount at `path` and those below it read-only, without devices and set-uid; needs Linux 5.12."""
    attributes = struct.pack("QQQQ", MS_RDONLY | MS_NOSUID, 0, 0, 0)
    syscall(f"mount_setattr {path}", _SYS_MOUNT_SETATTR, _AT_FDCWD, path.encode(), _AT_RECURSIVE, attributes, 32)


def change_root(new_root: str, old_root: str) -> None:
    """Make `new_root` the root, with the former one at `old_root` (a path within the new one)."""
    syscall(f"pivot_root {new_root}", known_syscall("pivot_root"), new_root.encode(), (new_root + old_root).encode())
    os.chdir("/")


def unmount(path: str) -> None:
    """Detach a mount and all below it."""
    _checked(_LIBC.umount2(path.encode(), _MNT_DETACH), f"umount {path}")


def _prctl(what: str, option: int, *arguments: int) -> None:
    wide = [ctypes.c_ulong(argument) for argument in (*arguments, 0, 0, 0, 0)[:4]]
    _checked(_LIBC.prctl(ctypes.c_int(option), *wide), what)


def die_with_parent(signal_number: int) -> None:
    """Have the kernel send this signal when the parent ends. A change of user clears that."""
    _prctl("PR_SET_PDEATHSIG", _PR_SET_PDEATHSIG, signal_number)


def adopt_orphans() -> None:
    """Make descendants whose parent ends children of this process."""
    _prctl("PR_SET_CHILD_SUBREAPER", _PR_SET_CHILD_SUBREAPER, 1)


def hide_process() -> None:
    """Let nobody of the same user trace this process or open its /proc files."""
    _prctl("PR_SET_DUMPABLE", _PR_SET_DUMPABLE, 0)


def own_memory() -> int:
    """Return the descriptor of this process's memory, for another process to read and write it.

    Anyone who has the descriptor needs no further right. Files of a hidden process belong to root, so this one is shown
    for as long as it takes, and hidden afterwards.
    """
    _prctl("PR_SET_DUMPABLE", _PR_SET_DUMPABLE, 1)
    try:
        return os.open("/proc/self/mem", os.O_RDWR | os.O_CLOEXEC)
    finally:
        hide_process()


def map_code(code: bytes) -> int:
    """Return address of machine code that this process and its forks can run, for as long as they live."""
    pages = _LIBC.mmap(None, len(code), mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    if pages == _MAP_FAILED:
        _checked(-1, "mmap")
    ctypes.memmove(pages, code, len(code))
    protection = ctypes.c_int(mmap.PROT_READ | mmap.PROT_EXEC)
    _checked(_LIBC.mprotect(ctypes.c_void_p(pages), ctypes.c_size_t(len(code)), protection), "mprotect")
    assert isinstance(pages, int)
    return pages


def handle_signal(number: int, address: int) -> None:
    """Handle a signal with the machine code at `address`, which gets `(number, siginfo_t *, ucontext_t *)`."""
    action = _SignalAction(address, b"", _SA_SIGINFO | _SA_NODEFER | _SA_RESTART, None)
    _checked(_LIBC.sigaction(number, ctypes.byref(action), None), "sigaction")


def raw_stat(descriptor: int) -> bytes:
    """Return the kernel's `struct stat` of what a descriptor refers to."""
    status = ctypes.create_string_buffer(_STAT_BYTES)
    syscall("fstat", known_syscall("fstat"), descriptor, status)
    return status.raw


def forbid_new_privileges() -> None:
    """Keep set-uid programs and file capabilities from giving this process or a descendant more rights."""
    _prctl("PR_SET_NO_NEW_PRIVS", _PR_SET_NO_NEW_PRIVS, 1)


def drop_bounding_capabilities() -> None:
    """Keep descendants from gaining a capability; needs CAP_SETPCAP, and is pointless without."""
    try:
        for capability in range(64):
            _prctl("PR_CAPBSET_DROP", _PR_CAPBSET_DROP, capability)
    except OSError:
        return  # Past the kernel's last capability, or without the right to: then there is nothing to bound.


def drop_capabilities() -> None:
    """Give up every capability for good."""
    _prctl("PR_CAP_AMBIENT", _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    header = struct.pack("Ii", _CAPABILITY_VERSION_3, 0)
    syscall("capset", known_syscall("capset"), header, bytes(24))
