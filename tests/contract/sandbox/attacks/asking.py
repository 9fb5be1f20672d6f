"""Programs that want to know what does not concern them: which paths there are, and what other processes do.

They ask twice, about what is there and about what is not. An answer that differs tells which is which. Nothing that
they ask for changes anything where it is allowed.
"""

import textwrap
from typing import Final

from tests.contract.sandbox.attacks.attack import attack

_ASKING = """
X86 = os.uname().machine == "x86_64"
answer = ctypes.create_string_buffer(1 << 12)

def outcome(x86, arm, arguments):  # The error, or 0.
    number = x86 if X86 else arm
    if number is None:
        return None
    wide = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = libc.syscall(number, *wide)
    return ctypes.get_errno() if result < 0 else 0

def compare(questions, there, absent):
    for name, x86, arm, arguments in questions:
        outcomes = []
        for asked in (there, absent):
            ctypes.set_errno(0)
            outcomes.append(outcome(x86, arm, arguments(asked)))
        if outcomes[0] != outcomes[1]:
            escaped.append(f"{name} of {there}: {outcomes}")
"""


def _asking(source: str) -> str:
    return _ASKING + textwrap.dedent(source)


ASKING: Final = [
    attack(
        "secrets of the pod",
        "which paths there are",
        _asking(
            """
            HERE, RESOLVE = -100, ctypes.create_string_buffer(24)
            O_PATH, O_TMPFILE, AT_SYMLINK_NOFOLLOW, AT_EMPTY_PATH = 0x200000, 0x410000, 0x100, 0x1000
            watch = libc.syscall(294 if X86 else 26, 0)
            handle = ctypes.create_string_buffer((128).to_bytes(4, "little"), 256)
            questions = [
                ("stat", 4, None, lambda path: (path, answer)),
                ("lstat", 6, None, lambda path: (path, answer)),
                ("newfstatat", 262, 79, lambda path: (HERE, path, answer, 0)),
                ("newfstatat of a link", 262, 79, lambda path: (HERE, path, answer, AT_SYMLINK_NOFOLLOW)),
                ("newfstatat, empty", 262, 79, lambda path: (HERE, path, answer, AT_EMPTY_PATH)),
                ("newfstatat, empty, of 0", 262, 79, lambda path: (0, path, answer, AT_EMPTY_PATH)),
                ("newfstatat below 0", 262, 79, lambda path: (0, path, answer, 0)),
                ("statx", 332, 291, lambda path: (HERE, path, 0, 0xFFF, answer)),
                ("statx, empty", 332, 291, lambda path: (0, path, AT_EMPTY_PATH, 0xFFF, answer)),
                ("access", 21, None, lambda path: (path, 0)),
                ("access to write", 21, None, lambda path: (path, 2)),
                ("faccessat", 269, 48, lambda path: (HERE, path, 0)),
                ("faccessat2", 439, 439, lambda path: (HERE, path, 4, AT_SYMLINK_NOFOLLOW)),
                ("readlink", 89, None, lambda path: (path, answer, 64)),
                ("readlinkat", 267, 78, lambda path: (HERE, path, answer, 64)),
                ("statfs", 137, 43, lambda path: (path, answer)),
                ("open", 2, None, lambda path: (path, 0, 0)),
                ("open to write", 2, None, lambda path: (path, os.O_WRONLY, 0)),
                ("openat", 257, 56, lambda path: (HERE, path, 0, 0)),
                ("openat to write", 257, 56, lambda path: (HERE, path, os.O_RDWR, 0)),
                ("openat of a directory", 257, 56, lambda path: (HERE, path, os.O_DIRECTORY, 0)),
                ("openat of a path", 257, 56, lambda path: (HERE, path, O_PATH | os.O_NOFOLLOW, 0)),
                ("openat of a new file in it", 257, 56, lambda path: (HERE, path, O_TMPFILE | os.O_RDWR, 0o600)),
                ("openat2", 437, 437, lambda path: (HERE, path, RESOLVE, 24)),
                ("open_tree", 428, 428, lambda path: (HERE, path, 0)),
                ("execve", 59, 221, lambda path: (path, None, None)),
                ("execveat", 322, 281, lambda path: (HERE, path, None, None, 0)),
                ("chdir", 80, 49, lambda path: (path,)),
                ("chroot", 161, 51, lambda path: (path,)),
                ("umount", 166, 39, lambda path: (path, 8)),
                ("rmdir", 84, None, lambda path: (path + b"/.",)),
                ("unlinkat", 263, 35, lambda path: (HERE, path + b"/.", 0x200)),
                ("getxattr", 191, 8, lambda path: (path, b"user.x", answer, 64)),
                ("lgetxattr", 192, 9, lambda path: (path, b"user.x", answer, 64)),
                ("listxattr", 194, 11, lambda path: (path, answer, 64)),
                ("llistxattr", 195, 12, lambda path: (path, answer, 64)),
                ("name_to_handle_at", 303, 264, lambda path: (HERE, path, handle, answer, 0)),
                ("inotify_add_watch", 254, 27, lambda path: (watch, path, 0xFFF)),
                ("file_getattr", 468, 468, lambda path: (HERE, path, answer, 24, 0)),
            ]
            paths = [*HIDDEN_PATHS, *(["/proc/1/root", "/proc/1/cwd", "/proc/1/environ"] if os.getppid() else [])]
            for path in paths:
                absent = os.path.dirname(path) + "/longshore-attack-absent"
                compare(questions, os.fsencode(path), os.fsencode(absent))
                attempt(f"os.stat of {path}", lambda: bool(os.stat(path)))
                attempt(f"os.path.exists of {path}", lambda: os.path.exists(path))
            """
        ),
    ),
    attack(
        "secrets of the pod",
        "by paths that change meanwhile",
        _asking(
            """
            # Each of the same length: what is shown, what is not, and nothing.
            shown, hidden = os.fsencode(os.__file__), os.fsencode(OTHER_SAMPLE)
            length = max(len(shown), len(hidden))
            shown, hidden = (b"/" * (length - len(path)) + path for path in (shown, hidden))
            path = ctypes.create_string_buffer(shown)
            place, size = ctypes.addressof(path), len(shown)
            ended = threading.Event()
            def change():
                while not ended.is_set():
                    ctypes.memmove(place, hidden, size)
                    ctypes.memmove(place, shown, size)
                    ctypes.memmove(place, b"\\0", 1)
            changing = threading.Thread(target=change)
            changing.start()
            sys.setswitchinterval(1e-5)
            status = ctypes.create_string_buffer(144)
            SIZE_AT = 48
            until_s = time.monotonic() + 1.0
            while time.monotonic() < until_s and not escaped:
                for flags in (0, 0x1000):
                    if outcome(262, 79, (0, path, status, flags)) == 0:
                        found = int.from_bytes(status.raw[SIZE_AT : SIZE_AT + 8], "little")
                        attempt("stat", lambda: found == OTHER_SAMPLE_BYTES)
                descriptor = libc.syscall(257 if X86 else 56, -100, path, 0, 0)
                if descriptor >= 0:
                    attempt("open", lambda: os.read(descriptor, OTHER_SAMPLE_BYTES + 1) == OTHER_SAMPLE_CONTENT)
                    os.close(descriptor)
            ended.set()
            changing.join()
            """
        ),
    ),
    attack(
        "other processes",
        "what they do",
        _asking(
            """
            ABSENT, OWN = (1 << 22) - 1, os.getpid()
            version = (0x20080522).to_bytes(4, "little")
            vector = (ctypes.c_size_t * 2)(ctypes.addressof(answer), 8)
            read, write = os.pipe()
            questions = [
                ("kill", 62, 129, lambda process: (process, 0)),
                ("tkill", 200, 130, lambda process: (process, 0)),
                ("tgkill", 234, 131, lambda process: (process, process, 0)),
                ("rt_sigqueueinfo", 129, 138, lambda process: (process, 0, answer)),
                ("pidfd_open", 434, 434, lambda process: (process, 0)),
                ("owner of a descriptor", 72, 25, lambda process: (read, 8, process)),
                ("getpgid", 121, 155, lambda process: (process,)),
                ("getsid", 124, 156, lambda process: (process,)),
                ("getpriority", 140, 141, lambda process: (0, process)),
                ("getpriority of its group", 140, 141, lambda process: (1, process)),
                ("sched_getaffinity", 204, 123, lambda process: (process, 1024, answer)),
                ("sched_getscheduler", 145, 120, lambda process: (process,)),
                ("sched_getparam", 143, 121, lambda process: (process, answer)),
                ("sched_getattr", 315, 275, lambda process: (process, answer, 56, 0)),
                ("sched_rr_get_interval", 148, 127, lambda process: (process, answer)),
                ("ioprio_get", 252, 31, lambda process: (1, process)),
                ("prlimit64", 302, 261, lambda process: (process, 7, None, answer)),
                ("CPU time", 228, 113, lambda process: (~process << 3 | 2, answer)),
                ("CPU clock", 229, 114, lambda process: (~process << 3 | 2, answer)),
                ("wait for CPU time", 230, 115, lambda process: (~process << 3 | 2, 0, bytes(16), None)),
                ("timer of CPU time", 222, 107, lambda process: (~process << 3 | 2, None, answer)),
                ("get_robust_list", 274, 100, lambda process: (process, answer, vector)),
                ("process_vm_readv", 310, 270, lambda process: (process, vector, 1, vector, 1, 0)),
                ("kcmp", 312, 272, lambda process: (process, OWN, 0, 0, 0)),
                ("ptrace", 101, 117, lambda process: (0x4207, process, None, None)),
                ("move_pages", 279, 239, lambda process: (process, 0, None, None, None, 0)),
                ("capget", 125, 90, lambda process: (version + process.to_bytes(4, "little"), answer)),
                ("perf_event_open", 298, 241, lambda process: (answer, process, -1, -1, 0)),
            ]
            for process in (DECOY_PID, HOST_PID):
                compare(questions, process, ABSENT)
            """
        ),
    ),
    attack(
        "its keeper",
        "odd questions",
        _asking(
            """
            import mmap, random
            random.seed(7)
            WITHOUT_DIRECTORY = ((2, None), (4, None), (6, None), (21, None), (89, None))
            CALLS = (*WITHOUT_DIRECTORY, (257, 56), (262, 79), (267, 78), (269, 48), (439, 439))
            page = mmap.mmap(-1, mmap.PAGESIZE)  # Full of a path that does not end.
            page.write(b"/" * mmap.PAGESIZE)
            endless = ctypes.addressof(ctypes.c_char.from_buffer(page))
            paths = [b"", b".", b"..", b"//", b"/..", b"/" * 5000, b"/\\xff", b"x" * 300, b"/dev/null/x", b"/dev/stdin"]
            paths += [os.fsencode(os.__file__) + end for end in (b"", b"/", b"/..", b"/../..", b"/x")]
            kept = [ctypes.create_string_buffer(path) for path in paths]
            places = [ctypes.addressof(path) for path in kept]
            places += [0, 1, endless, ctypes.addressof(answer), 1 << 47, 1 << 62, (1 << 63) - 1, -1, -4096]
            results = [ctypes.addressof(answer), 0, 1, 1 << 47, -1]
            numbers = [0, 1, 2, 3, 4, -100, -1, 1 << 31, 1 << 32, 0x80000, 0x200000, 0x410002]
            for _ in range(600):
                x86, arm = kind = random.choice(CALLS)
                arguments = [] if kind in WITHOUT_DIRECTORY else [random.choice((-100, -100, 0, 63, -1, 1 << 40))]
                arguments += [random.choice(places), random.choice(results + [0, 0x80000, 0x200000, 0x410002])]
                arguments += [random.choice((0, 1, 64, 0x100, 1 << 20, 1 << 40)), random.choice(numbers)]
                outcome(x86, arm, arguments)
            """
        ),
    ),
    attack(
        "other programs",
        "hints on files that all can read",
        """
        import fcntl
        F_GET_RW_HINT, F_SET_RW_HINT, SHORT = 1035, 1036, (2).to_bytes(8, "little")
        file, device = open(LOCKED_FILE, "rb"), open("/dev/null", "r+b")
        attempt("query", lambda: bool(fcntl.fcntl(file, F_GET_RW_HINT, bytes(8))))
        attempt("hint", lambda: bool(fcntl.fcntl(device, F_SET_RW_HINT, SHORT)))
        """,
    ),
]
