"""The seccomp filter, as the kernel would execute it, for each machine that it is made for."""

import errno
from typing import Final

import pytest

from longshore_runtime.sandbox.seccomp import Instruction, build_filter
from longshore_runtime.sandbox.syscalls import ALLOWED, AUDIT_ARCH, CHECKED, SUPERVISED

_MACHINES: Final = ("x86_64", "aarch64")
_OWN: Final = 4242
_ALLOW, _ASK, _TRAP, _ERRNO, _KILL = 0x7FFF_0000, 0x7FC0_0000, 0x0003_0000, 0x0005_0000, 0x8000_0000
_HIGH_HALF: Final = 0xDEAD_BEEF << 32
_AT_EMPTY_PATH: Final = 0x1000
# Every system call of Linux 6.18 that takes a path, or binds or connects to one; x86_64 and aarch64, 0: does not exist.
_WITH_PATHS: Final = """
open 2 0, stat 4 0, lstat 6 0, access 21 0, execve 59 221, truncate 76 45, chdir 80 49, rename 82 0, mkdir 83 0,
rmdir 84 0, creat 85 0, link 86 0, unlink 87 0, symlink 88 0, readlink 89 0, chmod 90 0, chown 92 0, lchown 94 0,
utime 132 0, mknod 133 0, uselib 134 0, statfs 137 43, pivot_root 155 41, chroot 161 51, acct 163 89, mount 165 40,
umount2 166 39, swapon 167 224, swapoff 168 225, quotactl 179 60, setxattr 188 5, lsetxattr 189 6, getxattr 191 8,
lgetxattr 192 9, listxattr 194 11, llistxattr 195 12, removexattr 197 14, lremovexattr 198 15, utimes 235 0,
mq_open 240 180, mq_unlink 241 181, inotify_add_watch 254 27, openat 257 56, mkdirat 258 34, mknodat 259 33,
fchownat 260 54, futimesat 261 0, newfstatat 262 79, unlinkat 263 35, renameat 264 38, linkat 265 37, symlinkat 266 36,
readlinkat 267 78, fchmodat 268 53, faccessat 269 48, utimensat 280 88, fanotify_mark 301 263,
name_to_handle_at 303 264, open_by_handle_at 304 265, renameat2 316 276, bpf 321 280, execveat 322 281, statx 332 291,
open_tree 428 428, move_mount 429 429, fsconfig 431 431, fspick 433 433, openat2 437 437, faccessat2 439 439,
mount_setattr 442 442, quotactl_fd 443 443, fchmodat2 452 452, setxattrat 463 463, getxattrat 464 464,
listxattrat 465 465, removexattrat 466 466, open_tree_attr 467 467, file_getattr 468 468, file_setattr 469 469,
bind 49 200, connect 42 203, io_uring_setup 425 425, io_uring_enter 426 426, chdir to a descriptor 81 50
"""


def _answer(program: list[Instruction], machine: str, number: int, *arguments: int) -> int:
    """What the kernel does about a call."""
    words = {0: number, 4: AUDIT_ARCH[machine]}
    words |= {16 + 8 * place: argument & 0xFFFF_FFFF for place, argument in enumerate(arguments)}
    at = accumulator = 0
    while True:
        code, if_true, if_false, operand = program[at]
        at += 1
        match code:
            case 0x20:
                accumulator = words.get(operand, 0)
            case 0x54:
                accumulator &= operand
            case 0x06:
                return operand
            case _:
                is_true = {
                    0x15: accumulator == operand,
                    0x35: accumulator >= operand,
                    0x45: bool(accumulator & operand),
                }
                at += if_true if is_true[code] else if_false


def _numbers(machine: str) -> dict[str, int]:
    column = _MACHINES.index(machine) - 2
    rows = (entry.split() for entry in _WITH_PATHS.replace("\n", " ").split(","))
    return {" ".join(row[:-2]): int(row[column]) for row in rows if int(row[column])}


@pytest.mark.parametrize("machine", _MACHINES)
def test_no_call_with_a_path_gets_past_the_supervisor(machine: str) -> None:
    program = build_filter(machine, _OWN, alone=False, is_supervised=True)
    answers = {name: _answer(program, machine, number) for name, number in _numbers(machine).items()}
    assert {name for name, answer in answers.items() if answer == _ASK} == set(SUPERVISED) & set(answers)
    refused = {answer for answer in answers.values() if answer != _ASK}
    assert refused == {_ERRNO | errno.EPERM, _ERRNO | errno.ENOSYS}


@pytest.mark.parametrize("machine", _MACHINES)
def test_a_status_by_descriptor_is_left_to_the_handler_whatever_else_is_asked_for(machine: str) -> None:
    """Only the kernel sees whether the path is empty, so a supervisor and a filter are no use."""
    program = build_filter(machine, _OWN, alone=False, is_supervised=True)
    number = _numbers(machine)["newfstatat"]
    for flags in (_AT_EMPTY_PATH, _AT_EMPTY_PATH | 0x900, _AT_EMPTY_PATH | _HIGH_HALF):
        assert _answer(program, machine, number, 3, 0x1000, 0x2000, flags) == _TRAP
    assert _answer(program, machine, number, 3, 0x1000, 0x2000, 0x100 | _HIGH_HALF) == _ASK


@pytest.mark.parametrize("machine", _MACHINES)
@pytest.mark.parametrize("is_supervised", [False, True])
def test_a_program_among_others_asks_about_itself_only(machine: str, is_supervised: bool) -> None:
    program = build_filter(machine, _OWN, alone=False, is_supervised=is_supervised)
    numbers = ALLOWED[machine] | CHECKED[machine]
    for name in ("pidfd_open", "getpgid", "getsid", "sched_getaffinity", "kill", "prlimit64"):
        assert _answer(program, machine, numbers[name], _OWN) == _ALLOW, name
        assert _answer(program, machine, numbers[name], _OWN + 1) == _ERRNO | errno.EPERM, name
    for name in ("clock_gettime", "clock_getres", "clock_nanosleep"):
        assert _answer(program, machine, numbers[name], 1) == _ALLOW, name
        assert _answer(program, machine, numbers[name], ~_OWN << 3 | 2) == _ERRNO | errno.EPERM, name
    assert _answer(program, machine, numbers["getpriority"], 0, 0) == _ALLOW
    for which, who in ((0, _OWN + 1), (1, _OWN), (2, 0)):
        assert _answer(program, machine, numbers["getpriority"], which, who) == _ERRNO | errno.EPERM


@pytest.mark.parametrize("machine", _MACHINES)
def test_a_program_alone_has_paths_and_processes_of_its_own(machine: str) -> None:
    program = build_filter(machine, _OWN, alone=True, is_supervised=False)
    numbers = ALLOWED[machine] | CHECKED[machine]
    for name in (*SUPERVISED, "execve", "statx", "pidfd_open", "getsid", "chdir", "fchdir", "clock_gettime"):
        if name in numbers:
            assert _answer(program, machine, numbers[name], _OWN + 1) == _ALLOW, name


@pytest.mark.parametrize("machine", _MACHINES)
def test_calls_of_other_machines_end_the_program(machine: str) -> None:
    (other,) = set(_MACHINES) - {machine}
    program = build_filter(machine, _OWN, alone=True, is_supervised=False)
    assert _answer(program, other, 0) == _KILL
