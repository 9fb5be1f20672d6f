"""MPS where the driver allows it, time slicing with a reason where not; the programs here only act like NVIDIA's."""

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from longshore_runtime.judge import mps
from longshore_runtime.judge.mps import MAX_FAILURES, GpuSharing, MpsDaemon, SharingMode, share_gpus

CONTROL = """#!/bin/sh
pipe=$CUDA_MPS_PIPE_DIRECTORY
if [ "$1" = "-f" ]; then
    [ -e "$(dirname "$0")/broken" ] && { echo "An instance of this daemon is already running"; exit 1; }
    echo "$CUDA_MPS_LOG_DIRECTORY" > "$pipe/log_directory"
    mkfifo "$pipe/control"
    read -r command < "$pipe/control"
    exit 0
fi
read -r command
[ -p "$pipe/control" ] || { echo "Cannot find MPS control daemon process"; exit 1; }
case $command in
    get_server_list) cat "$pipe/servers" 2>/dev/null || true ;;
    get_server_status*) cat "$pipe/status" ;;
    quit) echo quit > "$pipe/control" ;;
esac
"""


class Container:
    """A PATH with programs that answer like NVIDIA's."""

    def __init__(self, root: Path) -> None:
        self.programs = root / "bin"
        self.programs.mkdir()
        self.directory = root / "mps"
        self.environment = {"PATH": f"{self.programs}:/usr/bin:/bin"}

    def install(self, name: str, script: str) -> None:
        path = self.programs / name
        path.write_text(script)
        path.chmod(0o755)

    def install_smi(self, *lines: str, status: int = 0) -> None:
        answer = "\n".join(lines)
        self.install("nvidia-smi", f"#!/bin/sh\ncat <<'END'\n{answer}\nEND\nexit {status}\n")

    def share(self) -> GpuSharing:
        return share_gpus(self.directory, self.environment)


@pytest.fixture
def container(tmp_path_factory: pytest.TempPathFactory) -> Container:
    return Container(tmp_path_factory.mktemp("c"))


@pytest.fixture
def sharing(container: Container) -> Iterator[GpuSharing]:
    """MPS on two GPUs."""
    container.install_smi("0, 9.0, Default, Disabled", "1, 9.0, Exclusive_Process, [N/A]")
    container.install("nvidia-cuda-mps-control", CONTROL)
    sharing = container.share()
    assert sharing.mode is SharingMode.MPS, sharing.reason
    yield sharing
    running(sharing).stop()


def running(sharing: GpuSharing) -> MpsDaemon:
    assert sharing.daemon is not None
    return sharing.daemon


def test_a_daemon_runs_with_pipes_and_logs_of_its_own(sharing: GpuSharing, container: Container) -> None:
    assert sharing.pipe_directory == container.directory / "pipe"
    assert (container.directory / "pipe" / "log_directory").read_text().strip() == str(container.directory / "log")
    assert (container.directory / "pipe").stat().st_mode & 0o777 == 0o700
    assert running(sharing).fault() is None


def test_clients_find_it_through_their_environment(sharing: GpuSharing, container: Container) -> None:
    assert sharing.client_environment() == {"CUDA_MPS_PIPE_DIRECTORY": str(container.directory / "pipe")}


def test_a_client_that_faulted_the_server_is_seen(sharing: GpuSharing) -> None:
    assert sharing.pipe_directory is not None
    (sharing.pipe_directory / "servers").write_text("4711\n")
    (sharing.pipe_directory / "status").write_text("ACTIVE\n")
    assert running(sharing).fault() is None
    (sharing.pipe_directory / "status").write_text("FAULT\n")
    assert running(sharing).fault() == "MPS server 4711 is in state FAULT: a client caused a fatal GPU error"


@pytest.fixture
def moody(container: Container) -> Iterator[MpsDaemon]:
    """A daemon whose servers 1 and 2 answer what stands in the files of their names; without one, they are gone."""
    container.install_smi("0, 9.0, Default, Disabled")
    container.install("nvidia-cuda-mps-control", CONTROL.replace('"$pipe/status"', '"$pipe/${command#* }"'))
    daemon = running(container.share())
    (daemon.pipe_directory / "servers").write_text("1\n2\n")
    yield daemon
    daemon.stop()


def test_a_server_that_is_gone_is_a_fault_only_after_several_answers_in_a_row(moody: MpsDaemon) -> None:
    (moody.pipe_directory / "2").write_text("ACTIVE\n")
    assert [moody.fault() for _ in range(MAX_FAILURES - 1)] == [None] * (MAX_FAILURES - 1)
    (moody.pipe_directory / "1").write_text("ACTIVE\n")
    assert moody.fault() is None
    (moody.pipe_directory / "1").unlink()
    assert [moody.fault() for _ in range(MAX_FAILURES - 1)] == [None] * (MAX_FAILURES - 1), (
        "one answer, and it counts from zero"
    )
    assert re.match(
        r"^the MPS daemon answered 'get_server_status 1' with status 1: .* \(5 times in a row\)$", str(moody.fault())
    )


def test_a_daemon_that_does_not_answer_in_time_is_asked_again(
    moody: MpsDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for somebody who writes into its list of servers."""
    servers = moody.pipe_directory / "servers"
    servers.unlink()
    os.mkfifo(servers)
    monkeypatch.setattr(mps, "_COMMAND_TIMEOUT_S", 0.01)
    *first, last = [moody.fault() for _ in range(MAX_FAILURES)]
    assert first == [None] * (MAX_FAILURES - 1)
    assert last == "the MPS daemon did not answer 'get_server_list' within 0.01 s (5 times in a row)"
    os.close(os.open(servers, os.O_RDWR))  # A process that waits for a writer goes on.


def test_a_fatal_error_is_seen_at_once_also_where_another_server_does_not_answer(moody: MpsDaemon) -> None:
    (moody.pipe_directory / "2").write_text("FAULT\n")
    assert moody.fault() == "MPS server 2 is in state FAULT: a client caused a fatal GPU error"


def test_a_daemon_that_died_is_seen(sharing: GpuSharing) -> None:
    daemon = running(sharing)
    os.killpg(daemon.process_id, signal.SIGKILL)
    os.waitid(os.P_PID, daemon.process_id, os.WEXITED | os.WNOWAIT)
    assert daemon.fault() == "the MPS daemon ended with status -9"


def test_a_stopped_daemon_has_ended(sharing: GpuSharing) -> None:
    daemon = running(sharing)
    daemon.stop()
    assert daemon.fault() == "the MPS daemon ended with status 0"


@pytest.mark.parametrize(
    ("gpus", "reason"),
    [
        (["0, 6.1, Default, [N/A]"], "GPU 0 has compute capability 6.1: limits per client need 7.0"),
        (["0, 9.0, Default, Disabled", "1, 9.0, Prohibited, Disabled"], "GPU 1 is in compute mode Prohibited"),
        (["0, 9.0, Default, Enabled"], "GPU 0 is divided by MIG: give the judge a separate instance"),
        ([], "nvidia-smi sees no GPU (it says nothing)"),
        (["what?"], "nvidia-smi answers 'what?', which is no description of a GPU"),
    ],
)
def test_gpus_that_cannot_be_shared_so_are_time_sliced_with_the_reason(
    container: Container, gpus: list[str], reason: str
) -> None:
    container.install_smi(*gpus)
    container.install("nvidia-cuda-mps-control", CONTROL)
    sharing = container.share()
    assert (sharing.mode, sharing.reason) == (SharingMode.TIME_SLICING, reason)
    assert sharing.daemon is None
    assert sharing.client_environment() == {}


def test_without_a_driver_the_reason_says_so(container: Container) -> None:
    sharing = share_gpus(container.directory, {"PATH": str(container.programs)})
    assert sharing.mode is SharingMode.TIME_SLICING
    assert sharing.reason == "there is no NVIDIA driver: nvidia-smi is not in this container"


def test_a_driver_that_fails_is_quoted(container: Container) -> None:
    container.install_smi("NVIDIA-SMI has failed because it could not communicate with the driver.", status=9)
    assert container.share().reason.startswith("nvidia-smi sees no GPU (NVIDIA-SMI has failed")


def test_without_the_control_program_the_reason_says_so(container: Container) -> None:
    container.install_smi("0, 9.0, Default, Disabled")
    assert container.share().reason == "nvidia-cuda-mps-control is not in this container"


def test_a_daemon_that_does_not_start_is_quoted(container: Container) -> None:
    container.install_smi("0, 9.0, Default, Disabled")
    container.install("nvidia-cuda-mps-control", CONTROL)
    container.install("broken", "")
    sharing = container.share()
    assert sharing.mode is SharingMode.TIME_SLICING
    assert sharing.reason == (
        "nvidia-cuda-mps-control ended with status 1: An instance of this daemon is already running"
    )


def test_a_directory_too_deep_for_sockets_is_a_reason(container: Container) -> None:
    container.install_smi("0, 9.0, Default, Disabled")
    container.install("nvidia-cuda-mps-control", CONTROL)
    sharing = share_gpus(container.directory / ("d" * 100), container.environment)
    assert sharing.mode is SharingMode.TIME_SLICING and "too long for sockets" in sharing.reason


def test_a_daemon_of_the_node_is_used_and_left_alone(container: Container) -> None:
    container.install_smi("0, 9.0, Exclusive_Process, Disabled")
    container.environment["CUDA_MPS_PIPE_DIRECTORY"] = "/mps/pipe"
    sharing = container.share()
    assert (sharing.mode, sharing.daemon) == (SharingMode.MPS, None)
    assert sharing.client_environment() == {"CUDA_MPS_PIPE_DIRECTORY": "/mps/pipe"}
