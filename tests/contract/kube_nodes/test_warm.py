"""A container that is a fork of an interpreter behaves as one that is a new process."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio

from longshore_devcluster.kubelet.containers import KILLED, ContainerProcess, Spec
from longshore_devcluster.kubelet.warm import WarmInterpreter

PRELOADED = "colorsys"
"""A module that no program imports by itself."""
PROGRAM = """
import json, os, signal, socket, subprocess, sys, tempfile, threading, time
def look():
    return {
        "argv": sys.argv[1:], "program": os.path.basename(sys.argv[0]), "name": __name__, "spec": __spec__.name,
        "main": sys.modules["__main__"].__dict__ is globals(), "cwd": os.getcwd(), "path": sys.path[:2],
        "environment": {n: v for n, v in os.environ.items() if n not in ("LC_CTYPE", "_")},
        "session": os.getsid(0) == os.getpid(), "temporary": tempfile.gettempdir(),
        "signals": [str(signal.getsignal(n)) for n in sorted(signal.valid_signals())],
        "files": sorted(os.listdir("/proc/self/fd"))[:-1], "stdin": sys.stdin.read(),
        "num_threads": threading.active_count(),
        "terminal": sys.stdout.isatty(), "line_buffering": sys.stdout.line_buffering, "umask": os.umask(0),
    }
match sys.argv[1:]:
    case ["look", *_]: print(json.dumps(look()))
    case ["modules"]: print(json.dumps(sorted(sys.modules)))
    case ["exit", code]: sys.exit(int(code))
    case ["raise"]: raise ValueError("of the program")
    case ["at-exit"]:
        import atexit
        atexit.register(print, "goodbye")
    case ["exit-with-a-sentence"]: sys.exit("something is wrong")
    case ["interrupt"]: signal.signal(signal.SIGINT, signal.default_int_handler); signal.raise_signal(signal.SIGINT)
    case ["leave-open", path]:
        left_open = open(path, "w")
        left_open.write("written")
    case ["thread"]: threading.Thread(target=lambda: (threading.main_thread().join(), print("still"))).start()
    case ["much"]: print("x" * 300_000); print("end", file=sys.stderr)
    case ["wait"]: print("waits", flush=True); time.sleep(600)
    case ["daemon"]:
        child = subprocess.Popen(["sleep", "600"], start_new_session=True)
        print(child.pid, flush=True)
"""


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("programs")
    (directory / "program.py").write_text(PROGRAM)
    (directory / "starts_a_thread.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
    )
    return directory


@pytest.fixture(scope="module")
def warm() -> Iterator[WarmInterpreter]:
    interpreter = WarmInterpreter(["no_such_module", PRELOADED])
    yield interpreter
    interpreter.close()


class Containers:
    """Starts containers in one of both ways."""

    def __init__(self, programs: Path, directory: Path, warm: WarmInterpreter | None) -> None:
        self.programs = programs
        self.directory = directory
        self.warm = warm
        self._started: list[ContainerProcess] = []
        self._logged = asyncio.Event()

    def spec(self, *arguments: str, **environment: str) -> Spec:
        env = {
            "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
            "PYTHONPATH": str(self.programs),
            "HOSTNAME": "a-pod-with-a-long-name",
            "TMPDIR": str(self.directory),
            **environment,
        }
        return Spec(["python", "-m", "program", *arguments], env, str(self.directory), log=str(self.directory / "log"))

    async def start(self, *arguments: str, **environment: str) -> ContainerProcess:
        spec = self.spec(*arguments, **environment)
        process = await ContainerProcess.start(spec, self._logged.set, self.warm)
        self._started.append(process)
        return process

    async def run(self, *arguments: str, **environment: str) -> int:
        return await (await self.start(*arguments, **environment)).wait()

    def output(self) -> list[str]:
        """Lines of the log without time and stream, as far as the program has got."""
        path = self.directory / "log"
        return [line.split(" ", 3)[3] for line in path.read_text().splitlines()] if path.exists() else []

    async def until_output(self) -> str:
        async with asyncio.timeout(60):
            await self._logged.wait()
        return self.output()[0]

    async def end(self) -> None:
        for process in self._started:
            process.kill()
            await process.wait()


@pytest_asyncio.fixture(params=["a new process", "a fork"])
async def containers(
    request: pytest.FixtureRequest, programs: Path, tmp_path: Path, warm: WarmInterpreter
) -> AsyncIterator[Containers]:
    started = Containers(programs, tmp_path, warm if request.param == "a fork" else None)
    yield started
    await started.end()


async def looked(programs: Path, directory: Path, warm: WarmInterpreter | None) -> dict[str, Any]:
    containers = Containers(programs, directory, warm)
    assert await containers.run("look", "1", "two words", TEAM="research", PATH_OF="$HOME") == 0
    found: dict[str, Any] = json.loads("".join(containers.output()))
    (directory / "log").unlink()
    return found


@pytest.mark.asyncio
async def test_a_program_sees_the_same_in_both(programs: Path, tmp_path: Path, warm: WarmInterpreter) -> None:
    as_new, as_fork = await looked(programs, tmp_path, None), await looked(programs, tmp_path, warm)
    assert as_fork == as_new
    assert as_new["argv"] == ["look", "1", "two words"]
    assert (as_new["cwd"], as_new["temporary"]) == (str(tmp_path), str(tmp_path))


@pytest.mark.asyncio
@pytest.mark.parametrize("code", [0, 3])
async def test_the_exit_code_is_the_programs(containers: Containers, code: int) -> None:
    assert await containers.run("exit", str(code)) == code


@pytest.mark.asyncio
async def test_an_exception_is_reported_in_the_log(containers: Containers) -> None:
    assert await containers.run("raise") == 1
    assert containers.output()[-1] == "ValueError: of the program"


@pytest.mark.asyncio
async def test_what_is_to_be_done_at_the_end_is_done(containers: Containers) -> None:
    assert await containers.run("at-exit") == 0
    assert containers.output() == ["goodbye"]


@pytest.mark.asyncio
async def test_a_signal_ends_a_program_that_does_not_handle_it(containers: Containers) -> None:
    process = await containers.start("wait")
    await containers.until_output()
    process.signal(signal.SIGTERM)
    assert await process.wait() == 128 + signal.SIGTERM


@pytest.mark.asyncio
async def test_a_keeper_that_is_killed_is_lost_whatever_it_was_asked(containers: Containers) -> None:
    process = await containers.start("wait")
    await containers.until_output()
    keeper = psutil.Process(process.pid).parent()
    assert keeper is not None
    keeper.suspend()
    process.signal(signal.SIGTERM)
    keeper.kill()
    assert await process.wait() == KILLED
    assert process.lost


@pytest.mark.asyncio
async def test_nothing_that_a_program_started_outlives_it(containers: Containers) -> None:
    process = await containers.start("daemon")
    pid = int(await containers.until_output())
    assert await process.wait() == 0
    assert not psutil.pid_exists(pid)


@pytest.mark.asyncio
async def test_it_can_be_killed(containers: Containers) -> None:
    process = await containers.start("wait")
    await containers.until_output()
    process.kill()
    assert await process.wait() == KILLED


@pytest.mark.asyncio
async def test_only_a_fork_has_the_imports(containers: Containers) -> None:
    assert await containers.run("modules") == 0
    assert (PRELOADED in "".join(containers.output())) is (containers.warm is not None)


@pytest.mark.asyncio
async def test_without_the_server_containers_are_new_processes(programs: Path, tmp_path: Path) -> None:
    warm = WarmInterpreter([PRELOADED])
    warm.close()
    assert await Containers(programs, tmp_path, warm).run("exit", "3") == 3


@pytest.mark.asyncio
async def test_imports_that_start_a_thread_make_new_processes(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(programs)  # Where the server looks for modules first.
    warm = WarmInterpreter([PRELOADED, "starts_a_thread"])
    try:
        containers = Containers(programs, tmp_path, warm)
        assert await containers.run("modules") == 0
        assert PRELOADED not in "".join(containers.output())
    finally:
        warm.close()


def test_a_server_has_nothing_of_the_users_environment(warm: WarmInterpreter) -> None:
    assert set(psutil.Process(warm.pid).environ()) <= {"PATH", "HOME", "TMPDIR", "LANG", "LC_CTYPE"}
