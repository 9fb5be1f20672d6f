"""`python -m longshore_devcluster`: start, stop and look at an embedded cluster."""

import argparse
import asyncio
import logging
import os
import signal
import sys
from dataclasses import fields
from pathlib import Path

from longshore_devcluster.cluster import ClusterConfig, DevCluster, remove_run_dirs, run_cluster
from longshore_devcluster.launcher import DataDirLock, LaunchError, find, start_detached, stop

_NOTICE = (
    "This cluster serves development and tests only: pods are plain processes of this machine, without isolation; "
    "it listens on loopback addresses only."
)


def main(argv: list[str] | None = None) -> int:
    """Run the command line; the exit code."""
    options = _parser().parse_args(argv)
    try:
        return int(options.run(options))
    except (LaunchError, ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="longshore_devcluster", description=f"An embedded Kubernetes cluster. {_NOTICE}"
    )
    commands = parser.add_subparsers(required=True)
    up = commands.add_parser("up", help="start the cluster", description=_NOTICE)
    up.set_defaults(run=_up)
    defaults = ClusterConfig()
    for option, text in {
        "port": "port of the API server; 0 takes a free one",
        "num_nodes": "number of nodes",
        "gpus_per_node": "pretend GPUs of each node",
        "gpu_resource": "resource name of the pretend GPUs",
        "cpus_per_node": "cores that each node claims to have",
        "memory_per_node": "memory that each node claims to have",
        "pods_per_node": "pods that a node takes at most",
        "node_prefix": "what node names begin with",
        "path_prefix": "first entry of the PATH of every container",
        "restart_backoff_s": "base of the restart delay of containers, in seconds",
        "preload": "modules, with commas between them, that are imported once for all containers",
    }.items():
        default = getattr(defaults, option)
        names = [f"--{option.replace('_', '-')}", *(["--nodes"] if option == "num_nodes" else [])]
        up.add_argument(*names, dest=option, type=type(default), default=default, help=f"{text} (default: {default})")
    up.add_argument("--detach", action="store_true", help="return once the cluster is ready, leaving it running")
    up.add_argument("--ready-fd", type=int, help=argparse.SUPPRESS)
    up.add_argument("--until-stdin-closes", action="store_true", help=argparse.SUPPRESS)
    down = commands.add_parser("down", help="stop the cluster")
    down.set_defaults(run=_down)
    down.add_argument("--delete-volumes", action="store_true", help="also remove the volumes of its pods")
    status = commands.add_parser("status", help="say whether the cluster runs")
    status.set_defaults(run=_status)
    for command in (up, down, status):
        command.add_argument("--data-dir", type=Path, required=True, help="directory that holds the cluster's state")
    return parser


def _up(options: argparse.Namespace) -> int:
    config = ClusterConfig(**{field.name: getattr(options, field.name) for field in fields(ClusterConfig)})
    data_dir = options.data_dir.absolute()
    if options.detach:
        if find(data_dir) is not None:
            raise LaunchError(f"a cluster already runs on {data_dir}: use it, or stop it with `down`")
        running = start_detached(data_dir, config)
        _say(_NOTICE)
        _say(f"export KUBECONFIG={running.kubeconfig}")
        return 0
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
    lock = DataDirLock(data_dir)
    if sys.version_info < (3, 12):  # Its default watcher keeps a thread for every process that it waits for.
        asyncio.set_child_watcher(asyncio.PidfdChildWatcher())
    try:
        asyncio.run(_serve(data_dir, config, lock, options))
    except OSError as error:
        raise LaunchError(f"the API server cannot start: {error}; choose another --port") from error
    finally:
        lock.release()
    return 0


async def _serve(data_dir: Path, config: ClusterConfig, lock: DataDirLock, options: argparse.Namespace) -> None:
    def on_ready(cluster: DevCluster) -> None:
        lock.announce(cluster.url, cluster.kubeconfig)
        _say(_NOTICE)
        _say(f"The API server serves {cluster.url}")
        _say(f"export KUBECONFIG={cluster.kubeconfig}")
        if options.ready_fd is not None:
            os.write(options.ready_fd, b"1")
            os.close(options.ready_fd)

    loop = asyncio.get_running_loop()
    serving = asyncio.create_task(run_cluster(data_dir, config, on_ready))
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, serving.cancel)

    def stop_once() -> None:
        # A closed stdin stays readable: cancelling again and again would interrupt what the cluster does to end.
        loop.remove_reader(0)
        serving.cancel()

    if options.until_stdin_closes:
        loop.add_reader(0, stop_once)
    try:
        await serving
    except asyncio.CancelledError:
        _say("The cluster has stopped.")


def _down(options: argparse.Namespace) -> int:
    data_dir = options.data_dir.absolute()
    stopped = stop(data_dir)
    if options.delete_volumes:
        remove_run_dirs(data_dir)
    _say("The cluster has stopped." if stopped else f"No cluster runs on {data_dir}.")
    return 0


def _status(options: argparse.Namespace) -> int:
    data_dir = options.data_dir.absolute()
    running = find(data_dir)
    if running is None:
        _say(f"No cluster runs on {data_dir}.")
        return 1
    _say(f"Process {running.pid} serves {running.url}")
    _say(f"export KUBECONFIG={running.kubeconfig}")
    return 0


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
