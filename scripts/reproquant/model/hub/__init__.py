"""A checkpoint from the Hugging Face Hub at one commit: resumable, checked, patient within bounds."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from huggingface_hub import constants

from reproquant.errors import DownloadError
from reproquant.model.hub import listing
from reproquant.model.hub.cache import RepositoryCache
from reproquant.model.hub.listing import RemoteFile
from reproquant.model.hub.patience import Backoff, Patience
from reproquant.model.hub.progress import Progress, amount
from reproquant.model.hub.refusals import KNOWN, understood
from reproquant.model.hub.transfer import Transfer
from reproquant.model.hub.trouble import Trouble
from reproquant.model.hub.words import Account
from reproquant.study import HubModel

NOTE = "As published on the Hugging Face Hub; every file's digest was compared with the Hub's own."
FILES_AT_A_TIME = 8


def download(
    spec: HubModel, target: Path, tell: Callable[[str], None] = print, patience: Patience = Patience()
) -> dict[str, Any]:
    """Fill ``target`` with the repository's files at ``spec.revision`` and return the manifest's ``source``.

    The bytes lie in the Hub's own cache (``HF_HOME``), which other tools and studies share; ``target`` gets
    hard links, or symbolic ones where the cache lies on another file system. Only the top level of the
    repository counts. A file gets its name in the cache when its digest is the one in the Hub's metadata;
    until then it is a partial file that the next try, or the next run after a kill, goes on with.
    ``tell`` gets lines of progress. Raises DownloadError, with what to do, if the repository can't be had
    or its bytes are not what the Hub says; the token is in no line and no error.
    """
    account = Account(os.environ.get("HF_TOKEN", "").strip())
    try:
        account.check()
        cache = RepositoryCache(spec)
        files = _fill(cache, account, lambda line: tell(account.without_secrets(line)), patience)
        if missing := cache.missing_parts():
            raise Trouble(
                f"it is no whole checkpoint in safetensors: it lacks {', '.join(missing)}",
                "give a repository that holds these files, or another commit of this one",
            )
        _link_all(cache, files, target)
    except KNOWN as error:
        trouble = understood(error, spec, account)
        where = trouble.where or f"{spec.repository}@{spec.revision}"
        reason, remedy = map(account.without_secrets, (trouble.reason, trouble.remedy))
        raise DownloadError(where, reason, remedy) from None
    return {
        "kind": "hub",
        "repository": spec.repository,
        "revision": spec.revision,
        "licence": spec.licence,
        "note": NOTE,
    }


def _fill(
    cache: RepositoryCache, account: Account, tell: Callable[[str], None], patience: Patience
) -> list[str]:
    """Make the cache hold the whole checkpoint; the names of its files come back.

    A Hub that gives no answer is no obstacle when the cache holds everything: a commit doesn't change.
    """
    whole = cache.is_whole()
    if constants.is_offline_mode() and not whole:
        raise Trouble(
            "HF_HUB_OFFLINE is set and the cache doesn't hold the whole model",
            "unset it; on a machine without network, copy the Hub cache (HF_HOME) of one where this ran",
        )
    try:
        files = listing.ask(cache.spec, account, Backoff(patience, tell, tries=1 if whole else None))
    except Trouble as trouble:
        if not whole:
            raise
        names = cache.check_by_names()
        tell(f"the Hub gave no list ({trouble.reason}); the whole model is in the cache, digests are right")
        return names
    _bring(files, cache, account, tell, patience)
    cache.write_snapshot(files)
    return [file.name for file in files]


def _bring(
    files: list[RemoteFile],
    cache: RepositoryCache,
    account: Account,
    tell: Callable[[str], None],
    patience: Patience,
) -> None:
    """Bring what the cache lacks, several files at a time; the first failure stops the others."""
    with ThreadPoolExecutor(FILES_AT_A_TIME) as pool:
        held = dict(zip(files, pool.map(cache.holds, files), strict=True))
    missing = sorted((file for file in files if not held[file]), key=lambda file: -file.size)
    partial = sum(cache.partial_bytes(file) for file in missing)
    needed = sum(file.size for file in missing) - partial
    cache.check_space(needed)
    tell(
        f"{cache.spec.repository} at {cache.spec.revision[:12]} from {constants.ENDPOINT}: "
        f"{len(files)} files, {amount(sum(file.size for file in files))}; "
        f"in the cache: {len(files) - len(missing)} files and {amount(partial)} of others; "
        f"to fetch: {amount(needed)}"
    )
    if not missing:
        return
    stop = threading.Event()
    progress = Progress(needed, tell, patience.between_lines)
    transfer = Transfer(cache, account, patience, progress, tell, stop)
    with ThreadPoolExecutor(FILES_AT_A_TIME) as pool:
        try:
            for done in as_completed([pool.submit(transfer.bring, file) for file in missing]):
                done.result()
        finally:
            stop.set()
    progress.finish()


def _link_all(cache: RepositoryCache, names: list[str], target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for name in names:
        _link((cache.snapshot / name).resolve(), target / name)


def _link(blob: Path, path: Path) -> None:
    try:
        os.link(blob, path)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK):
            raise
        path.symlink_to(blob)
