"""What an evaluation says: the file ``results/<study>/quality/<artifact>.json``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Percent = Annotated[float, Field(ge=0, le=100)]


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Divergence(Part):
    """How far the predictions are from the original's; KL divergences in nats, of one position each."""

    kld: float = Field(description="mean KL divergence, original to this")
    kld_error: float = Field(description="standard error of that mean")
    kld_median: float
    kld_p99: float
    kld_max: float
    same_top_percent: Percent = Field(description="positions at which the likeliest token is the original's")
    same_top_error_percent: float


class LlamaPerplexity(Part):
    """The same tokens through llama-perplexity, the second path for a GGUF."""

    perplexity: float
    kld: float
    same_top_percent: Percent


class Quality(Part):
    """One artifact's evaluation on the study's text."""

    artifact: str
    method: Literal["original", "weights only", "W8A8 emulated", "W8A16 emulated"] = Field(
        description="what is quantized in the evaluation: the arithmetic itself is float32"
    )
    artifact_bytes: int = Field(gt=0, description="of the GGUF, or of all *.safetensors")
    kept: bool = Field(description="whether the artifact is among the results or was made for this alone")
    chunks: int = Field(gt=0)
    chunk_tokens: int
    scored_tokens: int
    tokens_sha256: str = Field(description="of the token ids as int32")
    perplexity: float = Field(gt=0)
    perplexity_error: float = Field(description="standard error")
    divergence: Divergence | None = Field(description="none for the original")
    llama_cpp: LlamaPerplexity | None = None
    torch: str


class BaseFile(Part):
    """A file of the original's evaluation; ``path`` is relative to its directory."""

    path: str
    bytes: int
    sha256: str


class Original(Quality):
    """The original's evaluation, and the base file that the others are compared with."""

    text_sha256: str
    directory: str = Field(description="relative to the folder of this file")
    files: list[BaseFile]

    @property
    def base(self) -> str:
        """The base file, relative to the folder of this file."""
        return f"{self.directory}/{self.files[0].path}"
