"""The system calls that Python programs need, by machine. What is not here does not exist for them.

Numbers are those of the kernel's own headers (asm/unistd_64.h, asm-generic/unistd.h).
"""

from typing import Final

_BOTH: Final = """
read 0 63, write 1 64, readv 19 65, writev 20 66, pread64 17 67, pwrite64 18 68, preadv 295 69, pwritev 296 70,
preadv2 327 286, pwritev2 328 287, close 3 57, close_range 436 436, lseek 8 62, sendfile 40 71,
copy_file_range 326 285, splice 275 76, tee 276 77, faccessat 269 48, faccessat2 439 439, fstat 5 80,
newfstatat 262 79, statx 332 291, readlinkat 267 78, getdents64 217 61, statfs 137 43, fstatfs 138 44, mkdirat 258 34,
unlinkat 263 35, renameat 264 38, renameat2 316 276, symlinkat 266 36, linkat 265 37, truncate 76 45, ftruncate 77 46,
fallocate 285 47, fsync 74 82, fdatasync 75 83, utimensat 280 88, fchmod 91 52, fchmodat 268 53,
umask 95 166, chdir 80 49, fchdir 81 50, getcwd 79 17, dup 32 23, dup3 292 24, pipe2 293 59, ppoll 271 73,
pselect6 270 72, epoll_create1 291 20, epoll_ctl 233 21, epoll_pwait 281 22, epoll_pwait2 441 441, eventfd2 290 19,
timerfd_create 283 85, timerfd_settime 286 86, timerfd_gettime 287 87, signalfd4 289 74, sendto 44 206,
recvfrom 45 207, sendmsg 46 211, recvmsg 47 212, shutdown 48 210, getsockname 51 204, getpeername 52 205,
getsockopt 55 209, mmap 9 222, munmap 11 215, mprotect 10 226, mremap 25 216, madvise 28 233,
mincore 27 232, msync 26 227, brk 12 214, membarrier 324 283, execve 59 221, exit 60 93, exit_group 231 94,
wait4 61 260, waitid 247 95, set_tid_address 218 96, set_robust_list 273 99, futex 202 98, rseq 334 293,
gettid 186 178, getpid 39 172, getppid 110 173, getpgid 121 155, getsid 124 156, setpgid 109 154, setsid 112 157,
getuid 102 174, geteuid 107 175, getgid 104 176, getegid 108 177, getresuid 118 148, getresgid 120 150,
getgroups 115 158, rt_sigaction 13 134, rt_sigprocmask 14 135, rt_sigreturn 15 139, rt_sigpending 127 136,
rt_sigtimedwait 128 137, rt_sigsuspend 130 133, sigaltstack 131 132, restart_syscall 219 128, pidfd_open 434 434,
setitimer 38 103, getitimer 36 102, nanosleep 35 101, clock_nanosleep 230 115, clock_gettime 228 113,
clock_getres 229 114, gettimeofday 96 169, times 100 153, getrlimit 97 163, setrlimit 160 164, getrusage 98 165,
sysinfo 99 179, uname 63 160, getrandom 318 278, getcpu 309 168, sched_yield 24 124, sched_getaffinity 204 123,
sched_get_priority_max 146 125, sched_get_priority_min 147 126, getpriority 140 141, fadvise64 221 223
"""
_X86_64_ONLY: Final = """
creat 85, access 21, stat 4, lstat 6, readlink 89, getdents 78, mkdir 83, rmdir 84, unlink 87, rename 82,
symlink 88, link 86, utime 132, utimes 235, chmod 90, dup2 33, pipe 22, poll 7, select 23, epoll_create 213,
epoll_wait 232, eventfd 284, signalfd 282, fork 57, vfork 58, getpgrp 111, arch_prctl 158, pause 34, alarm 37, time 201
"""
# Allowed with some arguments only; `seccomp` says which.
_CHECKED: Final = "clone 56 220, socketpair 53 199, ioctl 16 29, prctl 157 167, prlimit64 302 261, kill 62 129, " + (
    "tgkill 234 131, fcntl 72 25, setsockopt 54 208, flock 73 32, openat 257 56"
)
_CHECKED_ON_X86_64: Final = "open 2"


def _column(table: str, index: int) -> dict[str, int]:
    rows = (entry.split() for entry in table.replace("\n", " ").split(","))
    return {row[0]: int(row[index]) for row in rows}


ALLOWED: Final = {
    "x86_64": _column(_BOTH, 1) | _column(_X86_64_ONLY, 1),
    "aarch64": _column(_BOTH, 2),
}
CHECKED: Final = {
    "x86_64": _column(_CHECKED, 1) | _column(_CHECKED_ON_X86_64, 1),
    "aarch64": _column(_CHECKED, 2),
}
SUPERVISED: Final = (
    "open", "openat", "stat", "lstat", "newfstatat", "access", "faccessat", "faccessat2", "readlink", "readlinkat",
)  # fmt: skip
"""The calls with paths that a supervisor answers for programs without a root directory of their own."""
CLONE3: Final = 435
"""Number of `clone3`.

Its flags are behind a pointer, where a filter cannot see them; an error makes libc use `clone` instead.
"""
AUDIT_ARCH: Final = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}
