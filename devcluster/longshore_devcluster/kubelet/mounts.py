"""Volumes without mount namespaces: mount paths are rewritten to directories of the pod.

A pod of the embedded cluster is an ordinary process and sees the machine's own file system, so nothing can be mounted
for it. Instead every volume is a directory of the pod, and every occurrence of a `mountPath` in a container's command,
arguments, environment values and probe or exec commands is replaced by that directory: `--out=/data/run` becomes
`--out=/tmp/ls…/data/run`. An occurrence counts at a path boundary only (`/data`, not `/database` nor `/old/data`), and
of several mount paths the longest wins. `terminationMessagePath` is treated alike. A path that a program composes by
itself, from text that never passes through the pod's specification, is not rewritten: pass paths in as arguments or
environment variables. `readOnly` is not enforced.

One program shows paths to its caller: `tar`, by which `kubectl cp` copies files out. Its archives must name files as
the pod's specification does, so an exec of it gets options that undo the rewriting in the archive.
"""

import re
from collections.abc import Mapping

_BEFORE = r"(?:(?<![\w.\-/])|(?<=://))"
_AFTER = r"(?![\w.\-])"
_SPECIAL = re.compile(r"[][.*^$\\,]")
_ESCAPED = r"\\\g<0>"


class Mounts:
    """The mount paths of one container and the real path that stands for each."""

    def __init__(self, real_paths: Mapping[str, str]) -> None:
        self._real = {_trimmed(path): real for path, real in real_paths.items()}
        longest_first = sorted(self._real, key=len, reverse=True)
        alternatives = "|".join(re.escape(path) for path in longest_first)
        self._pattern = re.compile(f"{_BEFORE}(?:{alternatives}){_AFTER}") if alternatives else None

    def rewrite(self, text: str) -> str:
        """Return the text with every mount path replaced."""
        if self._pattern is None:
            return text
        return self._pattern.sub(lambda match: self._real[match[0]], text)

    def rewrite_all(self, texts: list[str]) -> list[str]:
        """Return each text with every mount path replaced."""
        return [self.rewrite(text) for text in texts]

    def rewrite_exec(self, argv: list[str]) -> list[str]:
        """Return the command of an exec with every mount path replaced.

        Archives that it writes keep the original names.
        """
        rewritten = self.rewrite_all(argv)
        if argv[:2] != ["tar", "cf"]:
            return rewritten
        options = [
            f"--transform=flags=rSH;s,^{_SPECIAL.sub(_ESCAPED, real.lstrip('/'))},{path.lstrip('/')},"
            for path, real in self._real.items()
        ]
        return [*rewritten[:3], *options, *rewritten[3:]]


def _trimmed(path: str) -> str:
    return path.rstrip("/") or "/"
