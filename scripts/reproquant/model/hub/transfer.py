"""One file from the Hub to the cache: resumed where it stopped, accepted by its digest alone.

The bytes are streamed through huggingface_hub's own session, but not by its download function: that one
throws a partial file away whenever it fails, and waits as long as a server asks.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import httpx2
from huggingface_hub import get_session, hf_hub_url, hf_raise_for_status

from reproquant.files import locked
from reproquant.model.hub.cache import RepositoryCache, digest
from reproquant.model.hub.listing import RemoteFile
from reproquant.model.hub.patience import Backoff, Patience
from reproquant.model.hub.progress import Progress
from reproquant.model.hub.refusals import AGAIN, BUSY, KNOWN, MIRROR, busy, understood
from reproquant.model.hub.trouble import Contradiction, Trouble
from reproquant.model.hub.words import Account


@dataclass
class Transfer:
    """What the downloads of one repository's files share."""

    cache: RepositoryCache
    account: Account
    patience: Patience
    progress: Progress
    tell: Callable[[str], None]
    stop: threading.Event

    def bring(self, file: RemoteFile) -> None:
        """Make the cache hold ``file``. Raises Trouble, which names the file, if it can't.

        Another process that fetches the same file is waited for.
        """
        backoff = Backoff(self.patience, self.tell, stop=self.stop, answered=True)
        with locked(self.cache.lock(file)):
            if self.cache.holds(file):
                return
            self.cache.blob(file).parent.mkdir(parents=True, exist_ok=True)
            while True:
                try:
                    self._receive(file, backoff)
                    self._accept(file)
                    return
                except KNOWN as error:
                    trouble = understood(error, self.cache.spec, self.account)
                    trouble.where = trouble.where or file.name
                    backoff.wait(trouble, file.name)

    def _receive(self, file: RemoteFile, backoff: Backoff) -> None:
        """Add what is missing of the partial file."""
        partial = self.cache.partial(file)
        have = self.cache.partial_bytes(file)
        if have == file.size and partial.exists():
            return
        headers = {**self.account.headers(), "Accept-Encoding": "identity"}
        if have:
            headers["Range"] = f"bytes={have}-"
        url = hf_hub_url(self.cache.spec.repository, file.name, revision=self.cache.spec.revision)
        with get_session().stream("GET", url, headers=headers, timeout=self.patience.silence) as response:
            if response.status_code == 416 or (
                response.status_code == 206 and not _range_is(response, have, file.size)
            ):
                self._drop(file)
                raise Contradiction(f"the range from byte {have} of {file.size} was not served", MIRROR)
            start = _first_byte(response, file, have)
            if start != have:
                self._drop(file)
            self._write(file, response, start, backoff)

    def _write(self, file: RemoteFile, response: httpx2.Response, start: int, backoff: Backoff) -> None:
        size, step, step_began = start, 0, time.monotonic()
        with self.cache.partial(file).open("ab") as out:
            for chunk in response.iter_raw():
                if self.stop.is_set():
                    raise Trouble("another file failed", AGAIN)
                size += len(chunk)
                if size > file.size:
                    break
                out.write(chunk)
                self.progress.received(len(chunk))
                step += len(chunk)
                if step >= self.patience.step:
                    backoff.got_through()
                    step, step_began = 0, time.monotonic()
                elif time.monotonic() - step_began > self.patience.slow_after:
                    raise Trouble(
                        f"only {step} bytes came in {self.patience.slow_after:.3g} s",
                        AGAIN,
                        passing=True,
                        answered=True,
                    )
        if size > file.size:
            self._drop(file)
            raise Contradiction(f"more bytes came than the {file.size} of the Hub's metadata", MIRROR)
        if size < file.size:
            raise Trouble(
                f"the body ended after {size} of {file.size} bytes", AGAIN, passing=True, answered=True
            )

    def _accept(self, file: RemoteFile) -> None:
        """Give the finished file its name in the cache if its bytes, as they lie on the disk, are right."""
        partial = self.cache.partial(file)
        if (found := digest(partial, file.digest)) == file.digest:
            partial.replace(self.cache.blob(file))
            return
        self._drop(file)
        raise Contradiction(f"its bytes have the digest {found}, but the Hub says {file.digest}", MIRROR)

    def _drop(self, file: RemoteFile) -> None:
        self.progress.dropped(self.cache.partial_bytes(file))
        self.cache.partial(file).unlink(missing_ok=True)


def _first_byte(response: httpx2.Response, file: RemoteFile, have: int) -> int:
    """Where in the file the answer's body begins: ``have``, or 0 from a server that ignores ranges.

    Raises Trouble, or what huggingface_hub makes of a refusal, if it isn't the rest of the file.
    """
    status = response.status_code
    if status >= 400 and response.history and response.url.netloc != response.history[0].url.netloc:
        host = f"the storage host {response.url.host}"
        if status in BUSY:
            raise busy(response, host)
        raise Contradiction(f"{host} doesn't give the file out (HTTP {status})", AGAIN)
    hf_raise_for_status(response)
    if status not in (200, 206):
        raise Contradiction(f"HTTP {status} came in place of the file", MIRROR)
    start = have if status == 206 else 0
    announced = response.headers.get("Content-Length", "")
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise Contradiction("the body is compressed, which was not asked for", MIRROR)
    if announced.isdigit() and int(announced) != file.size - start:
        raise Contradiction(
            f"the server offers {announced} bytes where {file.size - start} are missing", MIRROR
        )
    return start


def _range_is(response: httpx2.Response, start: int, size: int) -> bool:
    """Whether the answer is the range from ``start`` to the end of ``size`` bytes."""
    return bool(
        re.fullmatch(rf"bytes {start}-{size - 1}/({size}|\*)", response.headers.get("Content-Range", ""))
    )
