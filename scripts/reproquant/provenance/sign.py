"""Signatures over a study's root, made and checked by OpenSSH.

Digests find accidents. Who can write the results can also write new records and
a new root; a signature shows that the root is the one that the key's owner saw.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from reproquant.errors import FormatError, ToolError
from reproquant.files import write_text
from reproquant.provenance.findings import Finding, Kind
from reproquant.provenance.root import NAME

NAMESPACE = "reproquant"
SIGNATURE = f"{NAME}.sig"
INSTALL = "install OpenSSH 8.2 or newer (Debian: openssh-client)"


def sign(results: Path, key: Path) -> Path:
    """Sign the root with a private key (or a public one whose private half an agent holds).

    An earlier signature stays until there is a new one.
    Raises FormatError if the study isn't sealed, and ToolError with
    ssh-keygen's words if it refuses the key.
    """
    root = results / NAME
    if not root.is_file():
        raise FormatError(root, "only a sealed study can be signed", "run the workflow to its end")
    done = _ssh_keygen("sign", "-n", NAMESPACE, "-f", key, content=root.read_bytes())
    if done.returncode:
        raise ToolError(key, _words(done), "give an SSH key that 'ssh-keygen -l -f KEY' can read")
    write_text(results / SIGNATURE, done.stdout.decode())
    return results / SIGNATURE


def signer(results: Path, allowed: Path) -> str:
    """Who signed the root, by a file of allowed signers (ssh-keygen(1), ALLOWED SIGNERS).

    Raises FormatError if there is no signature, it isn't one over this root,
    or its key isn't in the file.
    """
    root, signature = results / NAME, results / SIGNATURE
    if not signature.is_file() or not root.is_file():
        raise FormatError(signature, "the study isn't signed", "reproquant sign KEY")
    found = _ssh_keygen("find-principals", "-s", signature, "-f", allowed)
    principals = found.stdout.decode().split()
    if found.returncode or not principals:
        raise FormatError(signature, f"its key isn't in {allowed}: {_words(found)}", "check whose key it is")
    check = ("-n", NAMESPACE, "-I", principals[0], "-s", signature, "-f", allowed)
    done = _ssh_keygen("verify", *check, content=root.read_bytes())
    if done.returncode:
        raise FormatError(
            signature, f"it is no signature over this root: {_words(done)}", "reproquant sign KEY"
        )
    return principals[0]


def unsigned(results: Path, allowed: Path) -> list[Finding]:
    """A finding if the root isn't signed by one of the allowed signers."""
    try:
        signer(results, allowed)
    except FormatError as error:
        wanted = f"a signature by one of {allowed}"
        return [Finding(Kind.BROKEN, SIGNATURE, error.reason, wanted, "none that holds", error.remedy)]
    return []


def _ssh_keygen(*words: object, content: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run ``ssh-keygen -Y`` with ``content`` on its standard input."""
    command = ["ssh-keygen", "-Y", *map(str, words)]
    try:
        return subprocess.run(command, input=content, capture_output=True, check=False)
    except FileNotFoundError as error:
        raise ToolError("ssh-keygen", "it isn't installed", INSTALL) from error


def _words(done: subprocess.CompletedProcess[bytes]) -> str:
    return " ".join((done.stderr + done.stdout).decode(errors="replace").split())
