"""Programs that ask the kernel for more than programs need."""

from typing import Final

from tests.contract.sandbox.attacks.attack import attack

KERNEL: Final = [
    attack(
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
        """,
    ),
    attack(
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
        """,
    ),
    attack(
        "kernel",
        "programs that run in it",
        """
        import struct
        X86 = os.uname().machine == "x86_64"
        array = ctypes.create_string_buffer(struct.pack("IIIII", 2, 4, 4, 1, 0), 128)
        attempt("bpf", call(321 if X86 else 280, 0, array, 128))
        OF_THIS_PROGRAM = 0x60
        clock = ctypes.create_string_buffer(struct.pack("IIQQQQQ", 1, 128, 0, 0, 0, 0, OF_THIS_PROGRAM), 128)
        attempt("perf_event_open", call(298 if X86 else 241, clock, 0, -1, -1, 0))
        code = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0xFFFF))
        program = struct.pack("HxxxxxxQ", 1, ctypes.addressof(code))
        SO_ATTACH_FILTER = 26
        end, _ = socket.socketpair()
        attempt("filter of a socket", lambda: end.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program))
        """,
    ),
    attack(
        "kernel",
        "namespaces of users",
        """
        X86 = os.uname().machine == "x86_64"
        NEW_USER = 0x10000000
        def ends(child):
            if child == 0:
                os._exit(0)
            return child > 0 and os.waitpid(child, 0)[0] == child
        attempt("clone", lambda: ends(libc.syscall(56 if X86 else 220, NEW_USER | signal.SIGCHLD, 0, 0, 0, 0)))
        arguments = (ctypes.c_uint64 * 8)(NEW_USER, 0, 0, 0, signal.SIGCHLD)
        attempt("clone3", lambda: ends(libc.syscall(435, arguments, 64)))
        attempt("unshare", call(272 if X86 else 97, NEW_USER | 0x00020000))  # With mounts.
        """,
    ),
    attack(
        "kernel",
        "programs that are no file",
        """
        import struct
        X86 = os.uname().machine == "x86_64"
        EXIT_WITH_42 = "bf2a000000b83c0000000f05" if X86 else "400580d2a80b80d2010000d4"
        BASE, HEADERS = 0x400000, 120
        code = bytes.fromhex(EXIT_WITH_42)
        kind = struct.pack("16sHHI", b"\\x7fELF\\2\\1\\1", 2, 62 if X86 else 183, 1)
        header = kind + struct.pack("QQQIHHHHHH", BASE + HEADERS, 64, 0, 0, 64, 56, 1, 0, 0, 0)
        segment = struct.pack("IIQQQQQQ", 1, 5, 0, BASE, BASE, HEADERS + len(code), HEADERS + len(code), 4096)
        def run():
            memory = os.memfd_create("program")
            os.write(memory, header + segment + code)
            child = os.fork()
            if child == 0:
                empty = (ctypes.c_void_p * 1)()
                libc.syscall(322 if X86 else 281, memory, b"", empty, empty, 0x1000)  # execveat, AT_EMPTY_PATH
                os._exit(1)
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42
        attempt("execveat", run)
        """,
    ),
]
