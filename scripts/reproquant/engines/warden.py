"""End a server's process group when this process dies, however that happens."""

from __future__ import annotations

import subprocess

SCRIPT = 'read -r _; kill -s KILL -- "-$0"'


class Warden:
    """A shell that waits for this process to die and then kills a process group.

    A spawned server dies with its parent, but what the server started itself
    doesn't: vLLM's engine process would go on holding the GPU's memory. The
    shell reads a pipe whose other end only this process holds, so even after a
    SIGKILL it reads the end of it.
    """

    def __init__(self, group: int) -> None:
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", SCRIPT, str(group)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def dismiss(self) -> None:
        """Send the shell away; the group is left alone."""
        self._shell.kill()
        self._shell.communicate()
