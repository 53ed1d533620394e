"""From what huggingface_hub, its HTTP client or the operating system raise to words that help."""

from __future__ import annotations

import errno
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import httpx2
from huggingface_hub import constants
from huggingface_hub.errors import (
    DisabledRepoError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import parse_ratelimit_headers

from reproquant.model.hub.trouble import Contradiction, Trouble
from reproquant.model.hub.words import Account
from reproquant.study import HubModel

KNOWN = (Trouble, OSError, httpx2.HTTPError, httpx2.InvalidURL)
GARBAGE = (ValueError, KeyError, TypeError, AttributeError)
"""What reading an answer raises that is not the Hub's JSON."""
BUSY = frozenset({408, 425, 429, 500, 502, 503, 504, 520, 521, 522, 523, 524, 529})
AGAIN = "run again: finished files are kept and a partial one goes on where it stopped"
MIRROR = "if HF_ENDPOINT names a mirror, use another one or unset it; otherwise run again later"
REACH = "check the network, HF_ENDPOINT and the proxy variables (HTTPS_PROXY, NO_PROXY), then run again"


def understood(error: Exception, spec: HubModel, account: Account) -> Trouble:
    """The trouble behind an error of ``KNOWN`` or ``GARBAGE``."""
    match error:
        case Trouble():
            return error
        case OfflineModeIsEnabled():
            return Trouble("HF_HUB_OFFLINE is set", "unset it")
        case HfHubHTTPError():
            return refused(error, spec, account)
        case httpx2.ProxyError():
            return Trouble(
                f"the proxy refuses: {error}",
                "correct HTTPS_PROXY or HTTP_PROXY, or name the host in NO_PROXY",
            )
        case httpx2.HTTPError() | httpx2.InvalidURL():
            return broken(error)
        case HFValidationError():
            return Trouble(f"no repository can have this name: {error}", "correct model.hub.repository")
        case OSError():
            return _of_the_machine(error)
    return Contradiction(
        f"the answer is not the Hub's JSON ({type(error).__name__}: {error})",
        f"open {constants.ENDPOINT} in a browser: a login page of the network or a broken mirror "
        "(HF_ENDPOINT) stands in between",
    )


def refused(error: HfHubHTTPError, spec: HubModel, account: Account) -> Trouble:
    """The Hub answered, with an error."""
    page = f"https://huggingface.co/{spec.repository}"
    status = error.response.status_code
    said = error.response.headers.get("X-Error-Message", "")
    if status in BUSY:
        return busy(error.response, "the Hub")
    match error:
        case GatedRepoError():
            return Trouble(
                "the repository is gated: only accounts that accepted its terms may download it",
                f"accept the terms on {page}, then set HF_TOKEN to a token of that account",
            )
        case RevisionNotFoundError():
            return Trouble(
                "the repository has no such commit",
                f"copy the full commit hash from {page}/commits/main into model.hub.revision",
            )
        case DisabledRepoError():
            return Trouble("the Hub has disabled the repository", f"see {page}; use another repository")
        case RemoteEntryNotFoundError():
            return Trouble("the Hub lists this file but doesn't have it", MIRROR)
        case RepositoryNotFoundError() if "Invalid credentials" not in said:
            return Trouble(
                "the Hub has no such repository, or it is private",
                "correct model.hub.repository; for a private one set HF_TOKEN to a token that may read it",
            )
    if status == 407:
        return Trouble("the proxy wants a login (HTTP 407)", "give it in HTTPS_PROXY or HTTP_PROXY")
    if status in (401, 403):
        token = "the token in HF_TOKEN" if account.token else "a request without a token"
        return Trouble(
            f"the Hub refuses {token} (HTTP {status}{': ' + said if said else ''})",
            "set HF_TOKEN to a valid token with read access: https://huggingface.co/settings/tokens",
        )
    return Trouble(f"the Hub answered HTTP {status}{': ' + said if said else ''}", AGAIN)


def busy(response: httpx2.Response, who: str) -> Trouble:
    """A server that can't answer now, and for how long it says so."""
    status = response.status_code
    what = f"limits the rate of requests (HTTP {status})" if status == 429 else f"answered HTTP {status}"
    hint = " HF_TOKEN set to a token raises the limit" if status == 429 else ""
    return Trouble(
        f"{who} {what}",
        f"{AGAIN}.{hint}" if hint else AGAIN,
        passing=True,
        wait=asked_wait(response.headers),
        answered=True,
    )


def asked_wait(headers: httpx2.Headers) -> float | None:
    """Seconds that the answer asks to wait: Retry-After as a number or a date, or the Hub's RateLimit.

    None if it asks nothing that can be understood.
    """
    if (limit := parse_ratelimit_headers(headers)) and limit.remaining == 0:
        return float(limit.reset_in_seconds)
    value = headers.get("Retry-After", "").strip()
    try:
        if value.isdecimal():
            return float(int(value))
        moment = parsedate_to_datetime(value)
        return max(0.0, (moment.astimezone(UTC) - datetime.now(UTC)).total_seconds())
    except (ValueError, OverflowError):
        return None


def broken(error: httpx2.HTTPError | httpx2.InvalidURL) -> Trouble:
    """No answer, or one that broke off."""
    words = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    causes = list(_causes(error))
    if any(isinstance(cause, ssl.SSLCertVerificationError) for cause in causes):
        return Trouble(
            f"the certificate of {_asked(error)} is not trusted: {error}",
            "if your organization checks traffic, set SSL_CERT_FILE to its certificates; otherwise check "
            "HF_ENDPOINT and the clock",
        )
    match error:
        case httpx2.UnsupportedProtocol() | httpx2.InvalidURL() | httpx2.LocalProtocolError():
            return Trouble(
                f"the address {_asked(error)} can't be asked ({words})",
                "correct HF_ENDPOINT, such as https://huggingface.co",
            )
        case httpx2.TooManyRedirects():
            return Trouble(
                "the Hub redirects without end",
                "check HF_ENDPOINT and the proxy variables, or run again later",
            )
        case httpx2.ConnectError() | httpx2.ConnectTimeout():
            return Trouble(f"{_asked(error)} can't be reached ({words})", REACH, passing=True)
        case httpx2.TimeoutException():
            return Trouble(f"{_asked(error)} fell silent ({words})", AGAIN, passing=True)
    return Trouble(
        f"the connection to {_asked(error)} broke off ({words})", AGAIN, passing=True, answered=True
    )


def _asked(error: httpx2.HTTPError | httpx2.InvalidURL) -> str:
    """The server that was asked, without login or path."""
    try:
        url = error.request.url if isinstance(error, httpx2.HTTPError) else httpx2.URL(constants.ENDPOINT)
    except (RuntimeError, httpx2.InvalidURL):
        return constants.ENDPOINT
    return f"{url.scheme}://{url.netloc.decode()}" if url.host else constants.ENDPOINT


def _of_the_machine(error: OSError) -> Trouble:
    where = str(error.filename or "")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Trouble(
            f"the disk of the Hub cache is full ({error.strerror})",
            "free space, or set HF_HOME to a folder on a larger disk; finished files are kept",
            where=where,
        )
    return Trouble(
        f"the Hub cache can't be used ({error.strerror or error})",
        "check the path, its permissions and the disk, or set HF_HOME to another folder",
        where=where,
    )


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
