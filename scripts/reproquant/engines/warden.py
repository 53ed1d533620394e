"""End a server's process group and container when this process dies, however that happens."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

SCRIPT = 'read -r _; kill -s KILL -- "-$0"; [ $# = 0 ] || { "$@"; sleep 2; "$@"; }'


class Warden:
    """A shell that waits for this process to die and then kills a process group.

    A spawned server dies with its parent, but what the server started itself
    doesn't: vLLM's engine process would go on holding the GPU's memory. The
    shell reads a pipe whose other end only this process holds, so even after a
    SIGKILL it reads the end of it. A container isn't of the group: ``ending`` is
    the command that ends it, run twice, since a daemon may still have been about
    to start it the first time.
    """

    def __init__(self, group: int, ending: Sequence[str] = ()) -> None:
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", SCRIPT, str(group), *ending],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def dismiss(self) -> None:
        """Send the shell away; the group is left alone."""
        self._shell.kill()
        self._shell.communicate()
