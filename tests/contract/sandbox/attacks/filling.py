"""Programs that take more of the machine than they may: processes, memory, disk."""

from typing import Final

from tests.contract.sandbox.attacks.attack import LIMITED, attack

FILLING: Final = [
    attack(
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
        """,
        *LIMITED,
    ),
    attack(
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
            time.sleep(0.3)  # The keeper looks at times only.
            escaped.append("48 threads")
        """,
        *LIMITED,
    ),
    attack(
        "processes without end",
        "children of children",
        """
        def down(depth):
            if depth == 24:
                os.write(1, b"ESCAPED 24 generations ")
                os.write(ready, b"x")
            try:
                if os.fork() == 0:
                    down(depth + 1)
            except OSError:
                os.write(ready, b"x")
            while True:
                signal.pause()
        ended, ready = os.pipe()
        try:
            if os.fork() == 0:
                down(1)
            os.read(ended, 1)
        except OSError:
            pass
        """,
        *LIMITED,
    ),
    attack(
        "memory",
        "one block",
        """
        import mmap
        def fill():
            block = mmap.mmap(-1, NUM_BYTES)
            for at in range(0, NUM_BYTES, 4096):
                block[at] = 1
        attempt("filled", fill)
        """,
        *LIMITED,
    ),
    attack(
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
        """,
        *LIMITED,
    ),
    attack(
        "memory",
        "while its keeper has to answer",
        """
        def ask():
            while True:
                os.stat("/")
        for _ in range(4):
            threading.Thread(target=ask, daemon=True).start()
        def fill():
            kept = []
            for _ in range(NUM_BYTES >> 16):
                kept.append(bytearray(b"x") * (1 << 16))
            time.sleep(0.3)
        try:
            attempt("filled", fill)
        except MemoryError:
            pass
        """,
        *LIMITED,
    ),
    attack(
        "memory",
        "many children",
        """
        filled, ready = os.pipe()
        def fill():
            kept = bytearray(b"x") * (NUM_BYTES // 4)
            os.write(ready, kept[:1])
            while True:
                signal.pause()
        try:
            for number in range(6):
                if os.fork() == 0:
                    fill()
            for number in range(6):
                os.read(filled, 1)
            time.sleep(0.3)
            escaped.append("6 children")
        except OSError:
            pass
        """,
        *LIMITED,
    ),
    attack(
        "memory",
        "many programs",
        """
        import subprocess
        FILL = "import sys, time; kept = bytearray(b'x') * int(sys.argv[1]); print(flush=True); time.sleep(60)"
        try:
            fillers = [
                subprocess.Popen([sys.executable, "-S", "-c", FILL, str(NUM_BYTES // 4)], stdout=subprocess.PIPE)
                for number in range(6)
            ]
            filled = [filler.stdout.read(1) for filler in fillers]
            time.sleep(0.3)
            if all(filled):
                escaped.append("6 programs")
        except OSError:
            pass
        """,
        *LIMITED,
    ),
    attack(
        "memory",
        "buffers of sockets",
        """
        kept, filled = [], 0
        while len(kept) < 28:
            one, other = socket.socketpair()
            kept.append((one, other))
            for end in (one, other):
                end.setblocking(False)
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 30)
                try:
                    while filled < NUM_BYTES:
                        filled += end.send(bytes(1 << 16))
                except BlockingIOError:
                    pass
        if filled > NUM_BYTES // 2:
            time.sleep(0.3)
            escaped.append(f"{filled >> 20} MiB")
        """,
        *LIMITED,
    ),
    attack(
        "memory",
        "buffers of pipes",
        """
        import fcntl
        def grown():
            read, write = os.pipe()
            return fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 1 << 20) >= 1 << 20
        attempt("1 MiB", grown)
        """,
    ),
    attack(
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
                discard(path)
        for directory in (".", "/tmp", "/var/tmp", "/dev/shm"):
            attempt(directory, lambda: fill(directory + "/longshore-attack"))
        """,
        *LIMITED,
    ),
    attack(
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
                    discard(path)
        for directory in (".", "/tmp", "/var/tmp", "/dev/shm"):
            attempt(directory, lambda: fill(directory))
        """,
        *LIMITED,
    ),
]
