"""A process with the imports of mathematics done, whose forks score (`fork_template`). `child_process` starts it.

The imports take 0.4 s of CPU time and 40 MB, for every worker and again whenever one was cut off. The process runs no
code of users, and ends with the one that started it; its forks end with theirs (`child_pipes`).
"""

import socket
import sys

from longshore_runtime.rewards import child
from longshore_runtime.rewards.fork_template import serve
from longshore_runtime.rewards.maths.agreement import answers_agree


def main(control: int) -> None:
    """Fork for every request. The argument is the file descriptor of a socket."""
    answers_agree("\\boxed{1}", "1")  # The first call imports more.
    serve(socket.socket(fileno=control), child.main)


if __name__ == "__main__":
    main(int(sys.argv[1]))
