"""Landlock: what a program may open, connect to and signal, by rules that it cannot lift (Linux 5.13 and later)."""

import os
import struct
from collections.abc import Iterable
from typing import Final

from longshore_runtime.sandbox import linux
from longshore_runtime.sandbox.layers import LayerUnavailable

_SYS_CREATE_RULESET: Final = 444
_SYS_ADD_RULE: Final = 445
_SYS_RESTRICT_SELF: Final = 446
_VERSION: Final = 1
_RULE_PATH_BENEATH: Final = 1

_EXECUTE: Final = 1 << 0
_WRITE_FILE: Final = 1 << 1
_READ_FILE: Final = 1 << 2
_READ_DIR: Final = 1 << 3
# Kinds of access that a kernel of each version knows: removing and making (1), linking across (2), truncating (3),
# ioctl on devices (5).
_FILE_ACCESS: Final = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}
_IOCTL_DEVICE: Final = 1 << 15
_TCP: Final = 0b11  # bind, connect
_SCOPES: Final = 0b11  # abstract sockets, signals
_SCOPE_SIGNAL: Final = 0b10
_REFER: Final = 1 << 13
_REFER_SINCE: Final = 2
_NETWORK_SINCE: Final = 4
_SCOPES_SINCE: Final = 6
_ON_FILES: Final = _EXECUTE | _WRITE_FILE | _READ_FILE | 1 << 14 | 1 << 15


def version() -> int:
    """Return the version of the kernel's interface; raises LayerUnavailable if the kernel has none."""
    try:
        return linux.syscall("landlock_create_ruleset", _SYS_CREATE_RULESET, None, 0, _VERSION)
    except OSError as error:
        raise LayerUnavailable(f"the kernel has no Landlock ({error.strerror})") from error


def make_ruleset(readable: Iterable[str], writable: Iterable[str]) -> int:
    """Return the descriptor of rules that leave these paths and what lies below them; missing ones are left out."""
    interface = version()
    handled = _FILE_ACCESS[min(interface, max(_FILE_ACCESS))]
    # Kernels before 4 and 6 take shorter attributes.
    attributes = struct.pack(
        "QQQ",
        handled,
        _TCP if interface >= _NETWORK_SINCE else 0,
        _SCOPES if interface >= _SCOPES_SINCE else 0,
    )[: 8 if interface < _NETWORK_SINCE else 16 if interface < _SCOPES_SINCE else 24]
    try:
        ruleset = linux.syscall("landlock_create_ruleset", _SYS_CREATE_RULESET, attributes, len(attributes), 0)
        for paths, access in (
            (readable, _EXECUTE | _READ_FILE | _READ_DIR),
            (writable, handled & ~_EXECUTE & ~_IOCTL_DEVICE),
        ):
            for path in paths:
                _allow(ruleset, path, access)
    except OSError as error:
        raise LayerUnavailable(f"the kernel refuses Landlock rules: {error.strerror}") from error
    return ruleset


def isolate() -> None:
    """Keep this process and all it starts from reading, tracing and signalling processes that are not its own.

    It may do with files and networks what it could before. Call it while the process has one thread.

    Raises:
        LayerUnavailable: the kernel is older than 5.19, whose Landlock would also forbid to move files.
    """
    interface = version()
    if interface < _REFER_SINCE:
        raise LayerUnavailable("Landlock of this kernel cannot leave files alone")
    handled = _EXECUTE | _REFER  # A domain needs some rules, and these are allowed everywhere.
    attributes = struct.pack("QQQ", handled, 0, _SCOPE_SIGNAL)
    linux.forbid_new_privileges()
    try:
        size = len(attributes) if interface >= _SCOPES_SINCE else 8
        ruleset = linux.syscall("landlock_create_ruleset", _SYS_CREATE_RULESET, attributes, size, 0)
        _allow(ruleset, "/", handled)
    except OSError as error:
        raise LayerUnavailable(f"the kernel refuses Landlock rules: {error.strerror}") from error
    enforce(ruleset)


def enforce(ruleset: int) -> None:
    """Confine this thread and all it starts, for good, and close the rules; needs no new privileges."""
    try:
        linux.syscall("landlock_restrict_self", _SYS_RESTRICT_SELF, ruleset, 0)
    except OSError as error:
        raise LayerUnavailable(f"the kernel refuses Landlock rules: {error.strerror}") from error
    os.close(ruleset)


def _allow(ruleset: int, path: str, access: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, PermissionError):
        return
    if not os.path.isdir(path):  # noqa: PTH112 - runs in every fork, where pathlib's objects cost
        access &= _ON_FILES
    rule = struct.pack("=Qi", access, descriptor)
    linux.syscall(f"landlock_add_rule {path}", _SYS_ADD_RULE, ruleset, _RULE_PATH_BENEATH, rule, 0)
    os.close(descriptor)
