"""A seccomp filter that lets through the system calls of `syscalls`, and answers every other with EPERM.

The filter is classic BPF over `struct seccomp_data {u32 number, arch; u64 instruction, arguments[6]}`. Arguments that
are checked are 32 bits wide for the kernel, or have their flags in the lower half, so that half is all that counts.
"""

import ctypes
import errno
import struct
from collections.abc import Iterable
from typing import Final

from longshore_runtime.sandbox import linux
from longshore_runtime.sandbox.layers import LayerUnavailable
from longshore_runtime.sandbox.syscalls import ALLOWED, AUDIT_ARCH, CHECKED, CLONE3, SUPERVISED

_LOAD: Final = 0x20  # BPF_LD | BPF_W | BPF_ABS
_IF_EQUAL: Final = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
_IF_AT_LEAST: Final = 0x35  # BPF_JMP | BPF_JGE | BPF_K
_IF_ANY_BIT: Final = 0x45  # BPF_JMP | BPF_JSET | BPF_K
_AND: Final = 0x54  # BPF_ALU | BPF_AND | BPF_K
_RETURN: Final = 0x06  # BPF_RET | BPF_K

_ALLOW: Final = 0x7FFF_0000
_KILL: Final = 0x8000_0000
_ERRNO: Final = 0x0005_0000
_DENY: Final = _ERRNO | errno.EPERM
_ABSENT: Final = _ERRNO | errno.ENOSYS
_TRAP: Final = 0x0003_0000
_ASK: Final = 0x7FC0_0000
_IGNORE: Final = _ERRNO
"""Answer of a call that does nothing and succeeds: for hints, and for what programs ask for among themselves."""

_NUMBER_AT: Final = 0
_ARCH_AT: Final = 4
_ARGUMENTS_AT: Final = 16
_X32_BIT: Final = 0x4000_0000
_SECCOMP_SET_MODE_FILTER: Final = 1
_NEW_LISTENER: Final = 1 << 3

_NAMESPACE_FLAGS: Final = 0x7E02_0080
_CLONE_PARENT: Final = 0x8000
"""Flag that makes the child one of the keeper, which would wait for it for ever."""
_CLONE_THREAD: Final = 0x1_0000
_FORKS: Final = ("fork", "vfork")
_FILES_NOT_OPEN: Final = (
    "truncate", "chmod", "fchmod", "fchmodat", "utime", "utimes", "utimensat", "creat", "mkdir", "mkdirat", "rmdir",
    "unlink", "unlinkat", "rename", "renameat", "renameat2", "symlink", "symlinkat", "link", "linkat",
)  # fmt: skip
"""Calls that change files not open for writing; of the first seven Landlock knows `truncate`, since Linux 6.2."""
_PATHS_NOT_OPEN: Final = ("access", "faccessat", "faccessat2", "statfs", "chdir")
"""Calls that reveal paths which Landlock does not let a program open; nothing in Python needs them."""
_OTHER_PROCESSES: Final = ("pidfd_open", "getpgid", "getsid", "sched_getaffinity")
"""Calls whose first argument is a process, and which reveal which processes there are."""
_CLOCKS: Final = ("clock_gettime", "clock_getres", "clock_nanosleep")
_CLOCK_OF_A_PROCESS: Final = 1 << 31
"""Bit of clocks that count the CPU time of any process, also in `clock_nanosleep`."""
_PRIO_PROCESS: Final = 0
_O_PATH: Final = 0x20_0000
_AT_EMPTY_PATH: Final = 0x1000
_AF_UNIX: Final = 1
_SOCK_STREAM: Final = 1
_SOCK_TYPE_MASK: Final = 0xF
_SOL_SOCKET: Final = 1
_BUFFER_SIZES: Final = (7, 8)  # SO_SNDBUF, SO_RCVBUF: memory of the kernel that counts for nobody.
_TIME_LIMITS: Final = (20, 21, 66, 67)  # SO_RCVTIMEO and SO_SNDTIMEO, old and new.
_TERMINAL_AND_DESCRIPTOR_QUERIES: Final = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451, 0x802C_542A)
_NAMES_OF_THREADS_AND_MEMORY: Final = (15, 16, 0x5356_4D41)  # PR_SET_NAME, PR_GET_NAME, PR_SET_VMA
_LOCKS: Final = (6, 7, 37, 38)  # F_SETLK, F_SETLKW, F_OFD_SETLK, F_OFD_SETLKW
# F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_DUPFD_CLOEXEC, F_GETPIPE_SZ, F_GET_SEALS. Of the rest, owners are sent
# signals, leases and hints are seen by all who have the same file open, and the size of pipes is memory of the kernel.
_OWN_DESCRIPTORS: Final = (0, 1, 2, 3, 4, 1030, 1032, 1034)

Instruction = tuple[int, int, int, int]
"""Instruction of a filter: (code, instructions to skip if true, if false, operand)."""


def build_filter(machine: str, own_pid: int, alone: bool, is_supervised: bool) -> list[Instruction]:
    """Return the filter for one program.

    `alone`: the program has a process namespace, so that its signals reach nobody else's and its children end with it.
    Without one, signals reach its own process only, it learns nothing of other processes, it gets threads but no
    children (a child that keeps forking and ending is faster than anyone who wants to kill it), and it changes no file
    that is not open for writing.

    `is_supervised`: a supervisor answers the calls that open paths or tell something about them.

    Locks on files succeed and do nothing: programs of other samples read the same files, and would learn of them.
    """
    numbers = CHECKED[machine] | ALLOWED[machine]
    answers = {name: _always(_ALLOW) for name in numbers} | _checked(own_pid)
    if not alone:
        answers |= _among_others(own_pid)
    if is_supervised:
        answers |= _supervised()
    program = [
        (_LOAD, 0, 0, _ARCH_AT),
        (_IF_EQUAL, 1, 0, AUDIT_ARCH[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER_AT),
        (_IF_AT_LEAST, 0, 1, _X32_BIT),
        (_RETURN, 0, 0, _KILL),
        *_on(CLONE3, _always(_ABSENT)),
    ]
    for name, number in numbers.items():
        program += _on(number, answers[name])
    return [*program, (_RETURN, 0, 0, _DENY)]


def check() -> None:
    """Raise LayerUnavailable on a machine whose system calls are not known."""
    if linux.MACHINE not in ALLOWED:
        raise LayerUnavailable(f"system calls of {linux.MACHINE} are not known")


def install(own_pid: int, alone: bool, is_supervised: bool) -> int | None:
    """Filter the system calls of this thread and of all it starts, for good; needs no new privileges.

    Returns the descriptor by which the supervisor, if there is one, gets calls to answer.
    """
    check()
    instructions = build_filter(linux.MACHINE, own_pid, alone, is_supervised)
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *instruction) for instruction in instructions))
    program = struct.pack("HxxxxxxQ", len(instructions), ctypes.addressof(code))
    flags = _NEW_LISTENER if is_supervised else 0
    try:
        listener = linux.syscall("seccomp", linux.known_syscall("seccomp"), _SECCOMP_SET_MODE_FILTER, flags, program)
    except OSError as error:
        raise LayerUnavailable(f"the kernel refuses a seccomp filter: {error.strerror}") from error
    return listener if is_supervised else None


def _checked(own_pid: int) -> dict[str, list[Instruction]]:
    """Return answers to calls that are allowed with some arguments only."""
    return {
        "clone": _clone(may_fork=True),
        "socketpair": _socketpair(),
        "setsockopt": _setsockopt(),
        "ioctl": _only(1, _TERMINAL_AND_DESCRIPTOR_QUERIES),
        "prctl": _only(0, _NAMES_OF_THREADS_AND_MEMORY),
        "prlimit64": _only(0, (0, own_pid)),
        "fcntl": [_argument(1), *_answers(_LOCKS, _IGNORE), *_only(1, _OWN_DESCRIPTORS)],
        "flock": _always(_IGNORE),
    }


def _among_others(own_pid: int) -> dict[str, list[Instruction]]:
    """Return answers to a program that shares processes and files with others."""
    refused = (*_FORKS, *_FILES_NOT_OPEN, *_PATHS_NOT_OPEN, "execve")
    return {
        **dict.fromkeys(refused, _always(_DENY)),
        **dict.fromkeys(_OTHER_PROCESSES, _only(0, (0, own_pid))),
        "clone": _clone(may_fork=False),
        "kill": _only(0, (0, own_pid)),
        "tgkill": _only(0, (own_pid,)),
        "open": _without_flag(1, _O_PATH),
        "openat": _without_flag(2, _O_PATH),
        **dict.fromkeys(_CLOCKS, _without_flag(0, _CLOCK_OF_A_PROCESS)),
        "getpriority": [
            _argument(0),
            (_IF_EQUAL, 1, 0, _PRIO_PROCESS),
            (_RETURN, 0, 0, _DENY),
            *_only(1, (0, own_pid)),
        ],
    }


def _supervised() -> dict[str, list[Instruction]]:
    """Return answers where a supervisor decides about paths: none may remain that it does not see."""
    return {
        **dict.fromkeys(SUPERVISED, _always(_ASK)),
        # Even with this flag, a path counts if there is one; `fstat_trap` makes it an `fstat`.
        "newfstatat": [_argument(3), (_IF_ANY_BIT, 0, 1, _AT_EMPTY_PATH), (_RETURN, 0, 0, _TRAP), *_always(_ASK)],
        "statx": _always(_ABSENT),  # Then programs use `newfstatat`.
        "fchdir": _always(_DENY),  # The supervisor takes relative paths as from the root directory.
    }


def _on(number: int, body: list[Instruction]) -> list[Instruction]:
    return [(_IF_EQUAL, 0, len(body), number), *body]


def _always(answer: int) -> list[Instruction]:
    return [(_RETURN, 0, 0, answer)]


def _argument(index: int) -> Instruction:
    return (_LOAD, 0, 0, _ARGUMENTS_AT + 8 * index)


def _only(index: int, values: Iterable[int]) -> list[Instruction]:
    return [_argument(index), *_answers(values, _ALLOW), (_RETURN, 0, 0, _DENY)]


def _without_flag(index: int, flag: int) -> list[Instruction]:
    return [_argument(index), (_IF_ANY_BIT, 0, 1, flag), (_RETURN, 0, 0, _DENY), (_RETURN, 0, 0, _ALLOW)]


def _answers(values: Iterable[int], answer: int) -> list[Instruction]:
    return [step for value in values for step in ((_IF_EQUAL, 0, 1, value), (_RETURN, 0, 0, answer))]


def _clone(may_fork: bool) -> list[Instruction]:
    return [
        _argument(0),
        (_IF_ANY_BIT, 0, 1, _NAMESPACE_FLAGS | _CLONE_PARENT),
        (_RETURN, 0, 0, _DENY),
        (_IF_ANY_BIT, 1, 0, _CLONE_THREAD),
        (_RETURN, 0, 0, _ALLOW if may_fork else _DENY),
        (_RETURN, 0, 0, _ALLOW),
    ]


def _socketpair() -> list[Instruction]:
    # A stream pair speaks to its peer only; a datagram pair could be sent from to any address.
    return [
        _argument(0),
        (_IF_EQUAL, 1, 0, _AF_UNIX),
        (_RETURN, 0, 0, _DENY),
        _argument(1),
        (_AND, 0, 0, _SOCK_TYPE_MASK),
        (_IF_EQUAL, 0, 1, _SOCK_STREAM),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _DENY),
    ]


def _setsockopt() -> list[Instruction]:
    # Of the rest, filters are programs that run in the kernel.
    return [
        _argument(1),
        (_IF_EQUAL, 1, 0, _SOL_SOCKET),
        (_RETURN, 0, 0, _DENY),
        _argument(2),
        *_answers(_BUFFER_SIZES, _IGNORE),
        *_only(2, _TIME_LIMITS),
    ]
