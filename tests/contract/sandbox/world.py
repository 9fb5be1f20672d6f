"""What attacks aim at: a host with secrets, a neighbour, and servers that listen."""

import contextlib
import fcntl
import os
import secrets
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from longshore_runtime.sandbox import linux
from longshore_runtime.sandbox.layers import SandboxLimits
from longshore_runtime.sandbox.worker import ENVIRONMENT, START
from tests.commands import command_of

LIMITS: Final = SandboxLimits(
    wall_s=60.0, cpu_s=4.0, memory_bytes=96 << 20, num_processes=8, file_bytes=4 << 20, output_bytes=1 << 16
)
_PACKAGE: Final = Path(__file__).resolve().parent
_NUM_ATTACK_BYTES: Final = 256 << 20
_END_TIMEOUT_S: Final = 5.0
MARK: Final = "longshore-attack-that-stays"
"""Argument of processes by which attacks want to outlive their run, whatever their program and environment."""
_READ_BY_ALL: Final = Path("/etc/ld.so.cache")
"""A file that every program may read."""
_CANARY_NAME: Final = "LONGSHORE_CANARY"
_DECOY: Final = """
import signal
got = []
signal.signal(signal.SIGUSR1, lambda number, frame: got.append(number))
print("ready", flush=True)
while input():
    print(len(got), flush=True)
    got.clear()
"""


@dataclass(frozen=True)
class World:
    """Names that attacks use, and the processes behind them."""

    names: dict[str, object]
    decoy: "subprocess.Popen[bytes]"

    def is_unharmed(self) -> bool:
        """Whether the neighbour lives and got no signal since it was last asked."""
        assert self.decoy.stdin is not None
        assert self.decoy.stdout is not None
        if self.decoy.poll() is not None:
            return False
        self.decoy.stdin.write(b"?\n")
        self.decoy.stdin.flush()
        return self.decoy.stdout.readline() == b"0\n"


@contextlib.contextmanager
def world() -> Iterator[World]:
    """Everything that an attack could reach, for as long as the context."""
    linux.adopt_orphans()
    with contextlib.ExitStack() as stack:
        stack.callback(_remove_leftovers)
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        directory.chmod(0o755)
        sample = directory / "sample.py"
        sample.write_text("print(42)")
        storage = directory / "storage"
        storage.mkdir()
        (storage / "answers.json").write_text("42")
        token = directory / "serviceaccount"
        token.mkdir(mode=0o700)
        (token / "token").write_text("secret")
        shared = stack.enter_context(tempfile.NamedTemporaryFile(dir="/dev/shm"))
        shared.write(b"secret")
        shared.flush()
        Path(shared.name).chmod(0o644)
        loose = directory / "loose"
        loose.write_text("of anybody")
        loose.chmod(0o666)
        device = stack.enter_context(Path(os.devnull).open("rb"))
        # Shared, because other runs of these tests hold one too. Of the open file, because a lock of the process would
        # end when it closes any other descriptor of the device.
        fcntl.fcntl(device, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_RDLCK, 0, 0, 0, 0))
        locked = stack.enter_context(_READ_BY_ALL.open("rb"))
        fcntl.flock(locked, fcntl.LOCK_SH)  # An exclusive one would make other runs of these tests wait for this one.
        fcntl.lockf(locked, fcntl.LOCK_SH)
        abstract = f"longshore-{secrets.token_hex(8)}"
        os.environ[_CANARY_NAME] = secrets.token_hex(8)
        stack.callback(os.environ.pop, _CANARY_NAME)
        tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        udp = stack.enter_context(_bound(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)))
        stack.enter_context(_bound(socket.AF_UNIX, socket.SOCK_STREAM, f"\0{abstract}")).listen()
        stack.enter_context(_bound(socket.AF_UNIX, socket.SOCK_DGRAM, f"\0{abstract}-datagram"))
        stack.enter_context(_bound(socket.AF_UNIX, socket.SOCK_STREAM, str(directory / "socket"))).listen()
        (directory / "socket").chmod(0o777)
        decoy = subprocess.Popen(
            [sys.executable, "-S", "-c", _DECOY],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # As in a pod: of the same user as programs are without a layer, and with no more rights than they.
            preexec_fn=linux.drop_bounding_capabilities,
        )
        stack.callback(_end, decoy)
        assert decoy.stdout is not None
        decoy.stdout.readline()
        yield World(
            {
                "NUM_BYTES": _NUM_ATTACK_BYTES,
                "HOST_PID": os.getpid(),
                "DECOY_PID": decoy.pid,
                "CANARY_NAME": _CANARY_NAME,
                "OTHER_SAMPLE": str(sample),
                "OTHER_SAMPLE_CONTENT": sample.read_bytes(),
                "OTHER_SAMPLE_BYTES": sample.stat().st_size,
                "HIDDEN_PATHS": [
                    "/etc/shadow",
                    "/etc/passwd",
                    f"/proc/{os.getpid()}/environ",
                    f"/proc/{os.getpid()}/root",
                    f"/proc/{decoy.pid}",
                    shared.name,
                    *map(str, sorted(Path(sys.base_prefix).glob("lib/python3*/site-packages/*"))[:1]),
                    *map(str, (sample, storage, storage / "answers.json", token, token / "token", Path(__file__))),
                ],
                "SHARED_MEMORY": shared.name,
                "LOOSE_FILE": str(loose),
                "LOCKED_FILE": locked.name,
                "MARK": MARK,
                "REPOSITORY_FILE": str(Path(__file__).resolve()),
                "TCP_PORT": tcp.getsockname()[1],
                "UDP_PORT": udp.getsockname()[1],
                "ABSTRACT_SOCKET": abstract,
                "ABSTRACT_DATAGRAM": f"{abstract}-datagram",
                "SOCKET_PATH": str(directory / "socket"),
            },
            decoy,
        )


def zygotes() -> set[psutil.Process]:
    """Interpreters of the sandboxes of this process."""
    return {child for child in psutil.Process().children() if START in command_of(child)}


def survivors(timeout_s: float = _END_TIMEOUT_S) -> list[psutil.Process]:
    """Processes of sandboxes of this process that do not end, but for its zygotes.

    What outlives its parents becomes a child of this process, see `world`: those of other test runs do not count.
    """
    own = {*psutil.Process().children(recursive=True)}
    found = [process for process in own - zygotes() if _is_of_a_sandbox(process)]
    # A keeper still ends when its report is already here.
    return psutil.wait_procs(found, timeout=timeout_s)[1]


def _is_of_a_sandbox(process: psutil.Process) -> bool:
    """A fork of a zygote, whatever runs in the environment of one, and what attacks have marked."""
    command = command_of(process)
    return START in command or MARK in command or ENVIRONMENT.items() <= _environment(process).items()


def _environment(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except (psutil.NoSuchProcess, psutil.ZombieProcess, psutil.AccessDenied):
        return {}  # Who may not read that has the mark to go by.


def _remove_leftovers() -> None:
    """What attacks wrote and were not let remove."""
    library = Path(os.__file__).parent
    for directory in (*map(Path, ("/", "/tmp", "/var/tmp", "/dev/shm", "/etc", "/usr/lib")), library, _PACKAGE):
        for left in directory.glob("longshore-attack*"):
            left.unlink()


def _bound(family: socket.AddressFamily, kind: socket.SocketKind, address: str | tuple[str, int]) -> socket.socket:
    bound = socket.socket(family, kind)
    bound.bind(address)
    return bound


def _end(decoy: "subprocess.Popen[bytes]") -> None:
    decoy.send_signal(signal.SIGKILL)
    decoy.wait()
    for pipe in (decoy.stdin, decoy.stdout):
        assert pipe is not None
        pipe.close()
