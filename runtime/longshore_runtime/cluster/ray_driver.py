"""This process as the driver of its job's Ray cluster."""

import contextlib
import gc
from collections.abc import Iterator

import ray
from ray._private import utils


@contextlib.contextmanager
def ray_driver(address: str, node_ip: str, *, log_to_driver: bool = False) -> Iterator[None]:
    """Connect to the head at `address`; at the end of the block, disconnect without ending this process.

    While Ray disconnects, a thread that drops an object reference ends the process at once, with exit code 1. So does
    the garbage collector, which runs in any thread and is off meanwhile. Threads that hold references must have ended.
    """
    try:
        with _own_handler():
            ray.init(address=address, _node_ip_address=node_ip, log_to_driver=log_to_driver, logging_level="warning")
        yield
    finally:
        gc.collect()
        gc.disable()
        try:
            ray.shutdown()
        finally:
            gc.enable()


@contextlib.contextmanager
def _own_handler() -> Iterator[None]:
    """Keep Ray from installing its handler of SIGTERM, which ends the process as if it had crashed."""
    install = utils.set_sigterm_handler
    utils.set_sigterm_handler = lambda handler: None
    try:
        yield
    finally:
        utils.set_sigterm_handler = install
