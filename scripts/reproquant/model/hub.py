"""A checkpoint from the Hugging Face Hub at one commit."""

from __future__ import annotations

import errno
import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HTTPError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
    XetDownloadError,
)

from reproquant.errors import DownloadError
from reproquant.files import CHUNK_BYTES
from reproquant.model.local import missing_parts
from reproquant.study import HubModel

WANTED = ("*.safetensors", "*.json", "*.jinja", "merges.txt", "tokenizer.model", "README.md", "LICENSE*")
IN_FOLDERS = "*/*"
NOTE = "As published on the Hugging Face Hub; every file's digest was compared with the Hub's own."
SHA256_DIGITS = 64


def download(spec: HubModel, target: Path) -> dict[str, Any]:
    """Fill ``target`` with the repository's files at ``spec.revision`` and return the manifest's ``source``.

    The bytes go through the Hub's own cache (``HF_HOME``), so a broken download
    goes on where it stopped and two studies share one copy; ``target`` gets hard
    links, or symbolic ones where the cache lies on another file system. Only
    the top level of the repository counts. Raises DownloadError, with what to
    do, if the repository can't be had or its bytes are not what the Hub says.
    """
    snapshot = _snapshot(spec)
    if missing := missing_parts(snapshot):
        raise DownloadError(
            f"{spec.repository}@{spec.revision}",
            f"it is no whole checkpoint in safetensors: it lacks {', '.join(missing)}",
            "give a repository that holds these files, or another commit of this one; "
            "if HF_HUB_OFFLINE is set, unset it: the cache may hold only a part",
        )
    files = sorted(path for path in snapshot.iterdir() if path.is_file())
    with ThreadPoolExecutor() as pool:
        list(pool.map(check_blob, files))
    target.mkdir(parents=True, exist_ok=True)
    for path in files:
        _link(path.resolve(), target / path.name)
    return {
        "kind": "hub",
        "repository": spec.repository,
        "revision": spec.revision,
        "licence": spec.licence,
        "note": NOTE,
    }


def check_blob(path: Path) -> None:
    """Compare a file of the Hub's cache with the digest that the Hub gave for it.

    The cache names a blob by the Hub's ETag: the sha256 of a large file, or
    git's blob id, sha1 of ``blob <size>`` NUL <bytes>, of a small one. Raises
    DownloadError if they differ.
    """
    blob = path.resolve()
    if len(blob.name) == SHA256_DIGITS:
        digest = hashlib.sha256()
    else:
        digest = hashlib.sha1(b"blob %d\0" % blob.stat().st_size, usedforsecurity=False)
    with blob.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    if digest.hexdigest() != blob.name:
        raise DownloadError(
            path.name,
            f"its bytes have the digest {digest.hexdigest()}, but the Hub says {blob.name}",
            f"delete {blob} and run again",
        )


def _snapshot(spec: HubModel) -> Path:
    where = f"{spec.repository}@{spec.revision}"
    try:
        return Path(
            snapshot_download(
                spec.repository,
                revision=spec.revision,
                allow_patterns=list(WANTED),
                ignore_patterns=IN_FOLDERS,
            )
        )
    except (OSError, HTTPError, XetDownloadError) as error:
        raise DownloadError(where, *_explain(error, spec)) from error


def _explain(error: Exception, spec: HubModel) -> tuple[str, str]:
    """Reason and remedy for what huggingface_hub raised."""
    page = f"https://huggingface.co/{spec.repository}"
    if isinstance(error, GatedRepoError):
        return (
            "the repository is gated: only accounts that accepted its terms may download it",
            f"accept the terms on {page}, then run 'hf auth login' or set HF_TOKEN",
        )
    if isinstance(error, RevisionNotFoundError):
        return (
            "the repository has no such commit",
            f"copy the full commit hash from {page}/commits/main into model.hub.revision",
        )
    if isinstance(error, RepositoryNotFoundError):
        return (
            "the Hub has no such repository, or it is private",
            "correct model.hub.repository; for a private one run 'hf auth login' or set HF_TOKEN",
        )
    if isinstance(error, LocalEntryNotFoundError):
        return (
            f"the Hub can't be reached and the cache doesn't hold the whole model: {error}",
            "check the network, HF_ENDPOINT and HF_HUB_OFFLINE; on a machine without network, "
            f"copy the Hub cache of one on which this ran: "
            f"hf download {spec.repository} --revision {spec.revision}",
        )
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return (
            f"the disk of the Hub cache is full: {error}",
            "free space, or set HF_HOME to a folder on a larger disk; finished files are kept",
        )
    return (
        f"the download broke off ({type(error).__name__}: {error})",
        "run again: finished files are kept and a partial one goes on where it stopped",
    )


def _link(blob: Path, path: Path) -> None:
    try:
        os.link(blob, path)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK):
            raise
        path.symlink_to(blob)
