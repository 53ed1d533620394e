"""Who asks, and what of that must never be written down."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from reproquant.model.hub.trouble import Trouble

QUERY = re.compile(r"(https?://[^\s'\"?]+)\?[^\s'\"]*")
"""Links to the Hub's storage hosts carry a signature in their query."""
LOGIN = re.compile(r"(https?://)[^\s'\"/@]+@")


@dataclass(frozen=True)
class Account:
    """The token of the environment variable HF_TOKEN, or none; files with tokens are not read."""

    token: str = field(repr=False)

    def check(self) -> None:
        """Raise Trouble, which doesn't show it, if the token can't stand in an HTTP header."""
        if self.token and not re.fullmatch(r"[!-~]+", self.token):
            raise Trouble(
                "it holds blanks or characters that no token has",
                "set it to the token alone, as https://huggingface.co/settings/tokens shows it",
                where="HF_TOKEN",
            )

    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.token}"} if self.token else {}

    def without_secrets(self, text: str) -> str:
        """The text without the token, signatures of links, and logins in addresses."""
        if self.token:
            text = text.replace(self.token, "<HF_TOKEN>")
        return LOGIN.sub(r"\1", QUERY.sub(r"\1", text))
