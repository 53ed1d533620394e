"""One repository's part of the Hub's cache on disk, in the layout that huggingface_hub and others share.

``blobs/<digest>`` holds bytes, ``snapshots/<commit>/<name>`` are links to them, ``.locks`` guards each blob.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from huggingface_hub import constants, get_cached_repo_tree
from huggingface_hub.errors import CachedRepoTreeNotFoundError

from reproquant.files import CHUNK_BYTES
from reproquant.model import local
from reproquant.model.hub.listing import GIT_SHA1, SHA256, RemoteFile, is_wanted
from reproquant.model.hub.progress import amount
from reproquant.model.hub.trouble import Trouble
from reproquant.study import HubModel

MARGIN_BYTES = 64 << 20
"""What a file system needs beside the bytes themselves."""


class RepositoryCache:
    """Where the files of ``spec`` lie, and whether they are what they should be."""

    def __init__(self, spec: HubModel) -> None:
        self.spec = spec
        self._root = Path(constants.HF_HUB_CACHE).expanduser()
        self._name = f"models--{spec.repository.replace('/', '--')}"
        self.snapshot = self._root / self._name / "snapshots" / spec.revision

    def blob(self, file: RemoteFile) -> Path:
        return self._root / self._name / "blobs" / file.digest

    def partial(self, file: RemoteFile) -> Path:
        """Bytes of a download under way; a killed one leaves it for the next."""
        return self.blob(file).with_name(f"{file.digest}.reproquant.incomplete")

    def partial_bytes(self, file: RemoteFile) -> int:
        try:
            return min(self.partial(file).stat().st_size, file.size)
        except (FileNotFoundError, NotADirectoryError):
            return 0

    def lock(self, file: RemoteFile) -> Path:
        """The file that huggingface_hub locks, too, while it downloads this blob."""
        return self._root / ".locks" / self._name / f"{file.digest}.lock"

    def holds(self, file: RemoteFile) -> bool:
        """Whether the blob is here and its bytes are right; all of them are read."""
        blob = self.blob(file)
        return (
            blob.is_file() and blob.stat().st_size == file.size and digest(blob, file.digest) == file.digest
        )

    def check_space(self, needed: int) -> None:
        """Raise Trouble if the file system has no room for so many bytes."""
        self._root.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self._root).free
        if needed and needed + MARGIN_BYTES > free:
            raise Trouble(
                f"the disk of the Hub cache has {amount(free)} free, and {amount(needed)} are to be fetched",
                "free space, or set HF_HOME to a folder on a larger disk",
                where=str(self._root),
            )

    def write_snapshot(self, files: list[RemoteFile]) -> None:
        """Give the blobs their names at this commit, when all of them are here."""
        self.snapshot.mkdir(parents=True, exist_ok=True)
        for file in files:
            pointer = self.snapshot / file.name
            if pointer.resolve() != self.blob(file).resolve():
                fresh = pointer.with_name(f".{pointer.name}.{os.getpid()}-{threading.get_ident()}")
                fresh.unlink(missing_ok=True)
                fresh.symlink_to(os.path.relpath(self.blob(file), self.snapshot))
                fresh.replace(pointer)

    def missing_parts(self) -> list[str]:
        """What the snapshot lacks to be a checkpoint. Raises Trouble if its index lists no shards."""
        missing = local.missing_parts(self.snapshot)
        if local.NO_INDEX in missing:
            raise Trouble(
                "it is no index of weights",
                "use another commit or repository: the Hub serves the file like this",
                where=local.INDEX,
            )
        return missing

    def is_whole(self) -> bool:
        """Whether the snapshot has all files of a checkpoint, as far as that can be told without the Hub.

        One that huggingface_hub made has a list of its own, which is read; ours is written when all is here.
        """
        try:
            if not self.snapshot.is_dir() or self.missing_parts():
                return False
            tree = get_cached_repo_tree(
                self.spec.repository, revision=self.spec.revision, cache_dir=self._root
            )
        except Trouble:
            return False
        except CachedRepoTreeNotFoundError:
            return True
        return all((self.snapshot / file.path).is_file() for file in tree if is_wanted(file.path))

    def check_by_names(self) -> list[str]:
        """Compare every file of the snapshot with the digest that its blob is named by.

        Raises Trouble if one differs, or if the cache holds copies where it should hold links.
        """
        names = [path.name for path in self.snapshot.iterdir() if path.is_file() and is_wanted(path.name)]
        with ThreadPoolExecutor() as pool:
            list(pool.map(self._check_by_name, names))
        return names

    def _check_by_name(self, name: str) -> None:
        pointer = self.snapshot / name
        expected = pointer.readlink().name if pointer.is_symlink() else ""
        if not (SHA256.fullmatch(expected) or GIT_SHA1.fullmatch(expected)):
            raise Trouble(
                "the cache doesn't say its digest, and the Hub can't be asked",
                "run again with the Hub in reach",
                where=name,
            )
        if (found := digest(pointer, expected)) != expected:
            raise Trouble(
                f"its bytes in the cache have the digest {found}, but the Hub says {expected}",
                f"run again with the Hub in reach, which fetches it anew, or delete {pointer.resolve()}",
                where=name,
            )


def digest(path: Path, like: str) -> str:
    """The digest of a file's bytes of the kind that ``like`` is: sha256, or git's blob id.

    The latter is the sha1 of ``blob <size>`` NUL <bytes>.
    """
    if SHA256.fullmatch(like):
        found = hashlib.sha256()
    else:
        found = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            found.update(chunk)
    return found.hexdigest()
