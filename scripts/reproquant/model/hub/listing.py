"""What a repository holds at the pinned commit, as the Hub's own metadata says it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase

from huggingface_hub import HfApi
from huggingface_hub.hf_api import RepoSibling

from reproquant.model.hub.patience import Backoff
from reproquant.model.hub.refusals import GARBAGE, KNOWN, understood
from reproquant.model.hub.trouble import Trouble
from reproquant.model.hub.words import Account
from reproquant.study import HubModel

WANTED = ("*.safetensors", "*.json", "*.jinja", "merges.txt", "tokenizer.model", "README.md", "LICENSE*")
SHA256 = re.compile(r"[0-9a-f]{64}")
GIT_SHA1 = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class RemoteFile:
    """A file at the top of the repository.

    ``digest`` is the sha256 of a large file (LFS), or git's blob id of a small one: 64 or 40 hex digits.
    """

    name: str
    size: int
    digest: str


def is_wanted(name: str) -> bool:
    """Whether a file belongs to a checkpoint: weights, configuration, tokenizer, licence; no folder's."""
    return "/" not in name and any(fnmatchcase(name, pattern) for pattern in WANTED)


def ask(spec: HubModel, account: Account, backoff: Backoff) -> list[RemoteFile]:
    """The wanted files of the repository at the pinned commit, with sizes and digests.

    Raises Trouble if the Hub can't be reached or refuses, if it answers for another commit, or if there
    are no weights in safetensors among the files.
    """
    while True:
        try:
            files = _ask_once(spec, account, backoff.patience.silence)
            break
        except (*KNOWN, *GARBAGE) as error:
            backoff.wait(understood(error, spec, account), "the list of files")
    if not files:
        raise Trouble(
            "the repository is empty at this commit",
            "give a repository that holds a checkpoint, or another commit of this one",
        )
    wanted = [_remote_file(file) for file in files if is_wanted(file.rfilename)]
    if not any(file.name.endswith(".safetensors") for file in wanted):
        raise Trouble(
            "it is no whole checkpoint in safetensors: it lacks *.safetensors",
            "give a repository with weights in safetensors; pickled ones (*.bin, *.pt) can run code and "
            "are not read",
        )
    return wanted


def _ask_once(spec: HubModel, account: Account, timeout: float) -> list[RepoSibling]:
    api = HfApi(token=account.token or False)
    info = api.model_info(spec.repository, revision=spec.revision, files_metadata=True, timeout=timeout)
    if info.sha != spec.revision:
        raise Trouble(
            f"asked for the commit, the endpoint answers for another one, {info.sha}",
            "if HF_ENDPOINT names a mirror, use one that serves pinned commits, or unset it",
        )
    return info.siblings or []


def _remote_file(file: RepoSibling) -> RemoteFile:
    """Raises Trouble if the metadata gives no size or no digest: such a file couldn't be checked."""
    digest = file.lfs.sha256 if file.lfs else file.blob_id
    size = file.lfs.size if file.lfs else file.size
    form = SHA256 if file.lfs else GIT_SHA1
    if not isinstance(size, int) or size < 0 or not form.fullmatch(str(digest)):
        raise Trouble(
            f"the Hub's metadata gives no proper size and digest for it (size {size}, digest {digest})",
            "run again later; if HF_ENDPOINT names a mirror, it drops the metadata: use another one",
            where=file.rfilename,
        )
    return RemoteFile(file.rfilename, size, str(digest))
