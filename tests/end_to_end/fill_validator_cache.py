"""Run with the crate environment's Python: put RO-Crate 1.1's context into roc-validator's HTTP cache.

One argument, the cache. The context comes out of the rocrate package, through the
cache's own code, so that the validator can work without network.
"""

from __future__ import annotations

import io
import sys
from importlib.resources import files

from requests.adapters import BaseAdapter, HTTPAdapter
from requests_cache import CachedSession
from urllib3 import HTTPResponse

CONTEXT = "https://w3id.org/ro/crate/1.1/context"


class Package(BaseAdapter):
    """Answers every request with the context of the rocrate package."""

    def send(self, request, **options):
        content = files("rocrate").joinpath("data/ro-crate.jsonld").read_bytes()
        headers = {"Content-Type": "application/ld+json"}
        raw = HTTPResponse(io.BytesIO(content), headers, status=200, preload_content=False)
        return HTTPAdapter().build_response(request, raw)

    def close(self):
        pass


session = CachedSession(sys.argv[1], backend="sqlite", expire_after=-1)
session.mount("https://", Package())
session.get(CONTEXT).raise_for_status()
