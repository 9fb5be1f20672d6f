"""Programs that do not end, or leave something behind."""

from typing import Final

from longshore_runtime.sandbox.cases import CaseOutcome
from tests.contract.sandbox.attacks.attack import attack

ENDLESS: Final = [
    attack("endless", "loop", "while True: pass", CaseOutcome.TIMED_OUT),
    attack("endless", "sleep", "time.sleep(1e6)", CaseOutcome.TIMED_OUT),
    attack(
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
        CaseOutcome.TIMED_OUT,
    ),
    attack(
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
        CaseOutcome.TIMED_OUT,
    ),
    attack(
        "endless",
        "at exit",
        """
        import atexit
        atexit.register(lambda: time.sleep(1e6))
        """,
        CaseOutcome.TIMED_OUT,
    ),
    attack("endless", "questions to its keeper", "while True: os.stat('/')", CaseOutcome.TIMED_OUT),
    attack("endless", "stops itself", "os.kill(os.getpid(), signal.SIGSTOP)", CaseOutcome.TIMED_OUT),
    attack(
        "endless",
        "thread that never ends",
        """
        threading.Thread(target=time.sleep, args=(1e6,)).start()
        """,
        CaseOutcome.TIMED_OUT,
    ),
    attack(
        "endless",
        "fork bomb",
        """
        fork_without_end(lambda: None)
        """,
        CaseOutcome.TIMED_OUT,
        CaseOutcome.LIMIT,
    ),
    attack(
        "endless",
        "daemon bomb",
        """
        fork_without_end(os.setsid)
        """,
        CaseOutcome.TIMED_OUT,
        CaseOutcome.LIMIT,
    ),
    attack("endless output", "lines", "while True: print('contained')", CaseOutcome.LIMIT),
    attack("endless output", "one line", "while True: print('x' * 4096, end='')", CaseOutcome.LIMIT),
    attack("endless output", "standard error", "while True: print('x', file=sys.stderr)", CaseOutcome.LIMIT),
    attack(
        "endless output",
        "a child's",
        """
        if os.fork() == 0:
            while True: os.write(1, b"x" * 4096)
        signal.pause()
        """,
        CaseOutcome.LIMIT,
        CaseOutcome.ERROR,
    ),
]

DAEMONS: Final = [
    attack(
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
        """,
    ),
    attack(
        "daemons",
        "children of its keeper",
        """
        CLONE_PARENT = 0x8000
        def detach(end):
            child = libc.syscall(56 if os.uname().machine == "x86_64" else 220, CLONE_PARENT | end, 0, 0, 0, 0)
            if child == 0:
                while True: signal.pause()
            return False
        for end in (signal.SIGCHLD, 0, signal.SIGUSR1):
            attempt("clone", lambda: detach(end))
        """,
    ),
    attack(
        "daemons",
        "every signal ignored",
        """
        def detach():
            ready, signal_end = os.pipe()
            if os.fork() == 0:
                os.setsid()
                for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                    signal.signal(number, signal.SIG_IGN)
                os.write(signal_end, b"x")
                while True: signal.pause()
            os.read(ready, 1)
            return False
        attempt("fork", detach)
        """,
    ),
    attack(
        "daemons",
        "another program",
        """
        def detach():
            ready, signal_end = os.pipe()
            if os.fork() == 0:
                try:
                    os.setsid()
                    if os.fork() == 0:
                        os.set_inheritable(signal_end, True)
                        source = f"import os, time; os.write({signal_end}, b'x'); time.sleep(60)"
                        os.execve(sys.executable, [sys.executable, "-S", "-c", source, MARK], {})
                finally:
                    os._exit(0)
            os.wait()
            os.close(signal_end)
            os.read(ready, 1)
            return False
        attempt("fork", detach)
        """,
    ),
    attack(
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
        """,
    ),
]
