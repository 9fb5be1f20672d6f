"""Answers the C library's `fstat` in a program whose filter hands calls with paths to a supervisor.

The C library's `fstat` may be `newfstatat` with an empty path. A filter cannot see that the path is empty, and a
supervisor has no access to the program's descriptors. So the filter answers that form of the call with SIGSYS, and the
handler below makes it an `fstat`, which takes no path. The handler lends no rights: whatever a program puts in its
place is filtered like everything else.
"""

import signal
from typing import Final

from longshore_runtime.sandbox import linux

# Registers are those in the third argument, a `ucontext_t`, which the call also returns its result in.
_HANDLERS: Final = {
    "x86_64": """
    48 8b 42 70             mov rax, [rdx + 0x70]   path
    80 38 00                cmp byte [rax], 0
    75 1a                   jne refuse
    48 8b 7a 68             mov rdi, [rdx + 0x68]   descriptor
    48 8b b2 88 00 00 00    mov rsi, [rdx + 0x88]   buffer
    b8 05 00 00 00          mov eax, 5              fstat
    0f 05                   syscall
    48 89 82 90 00 00 00    mov [rdx + 0x90], rax
    c3                      ret
    48 c7 82 90 00 00 00 ff ff ff ff    refuse: mov qword [rdx + 0x90], -1      EPERM
    c3                      ret
    """,
    "aarch64": """
    49 60 40 f9             ldr x9, [x2, #192]      path
    29 01 40 39             ldrb w9, [x9]
    e9 00 00 35             cbnz w9, refuse
    40 5c 40 f9             ldr x0, [x2, #184]      descriptor
    41 64 40 f9             ldr x1, [x2, #200]      buffer
    08 0a 80 d2             mov x8, #80             fstat
    01 00 00 d4             svc #0
    40 5c 00 f9             str x0, [x2, #184]
    c0 03 5f d6             ret
    00 00 80 92             refuse: mov x0, #-1     EPERM
    40 5c 00 f9             str x0, [x2, #184]
    c0 03 5f d6             ret
    """,
}


def machine_code(machine: str) -> bytes:
    """Return the signal handler."""
    code = bytearray()
    for line in _HANDLERS[machine].splitlines():
        for word in line.split():
            if len(word) != 2:
                break
            code += bytes.fromhex(word)
    return bytes(code)


def install() -> None:
    """Handle SIGSYS in this process and its forks."""
    linux.handle_signal(signal.SIGSYS, linux.map_code(machine_code(linux.MACHINE)))
