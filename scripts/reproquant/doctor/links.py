"""Checks of how two GPUs reach each other."""

from __future__ import annotations

from collections.abc import Iterator

from reproquant.doctor.check import Check, check
from reproquant.doctor.reading import Reading
from reproquant.machine.links import Links
from reproquant.study import Study


def between_gpus(study: Study, reading: Reading) -> Iterator[Check]:
    """NVLink where the cards have it, peer access, and what the PCIe tree does to it."""
    if max((subject.gpus for subject in study.subjects), default=0) < 2 or len(reading.gpus) < 2:
        return
    found = reading.links
    yield _nvlink(found)
    yield _peer_access(found)
    yield _tree(found)


def _nvlink(found: Links) -> Check:
    owned = sum(count for count, _ in found.nvlinks)
    joined = sum(pair.nvlinks for pair in found.pairs)
    if not owned:
        return Check("NVLink", "ok", "these cards have none", "what the cards have")
    active = sum(count for _, count in found.nvlinks)
    return check(
        "NVLink",
        joined > 0,
        f"{joined} links join GPUs, {active} of {owned} are on",
        "links that join the GPUs",
        "see `nvidia-smi nvlink -s`: reseat the bridge or the baseboard, and look whether the driver was "
        "loaded with NVreg_NvLinkDisable=1; two cards then talk over PCIe",
    )


def _peer_access(found: Links) -> Check:
    without = [f"GPU {pair.first}–{pair.second}" for pair in found.pairs if pair.peer_access is False]
    if all(pair.peer_access is None for pair in found.pairs):
        return Check("peer access", "unknown", "the driver doesn't tell", "between all GPUs")
    return check(
        "peer access",
        not without,
        f"none for {', '.join(without)}" if without else "between all GPUs",
        "between all GPUs",
        "turn the IOMMU (VT-d) and ACS off in the firmware, or boot with iommu=pt; until then vLLM on two "
        "cards needs --disable-custom-all-reduce and NCCL copies through memory",
    )


def _tree(found: Links) -> Check:
    joined = ", ".join(
        f"GPU {pair.first}–{pair.second}: {pair.joined_by or 'unknown'}" for pair in found.pairs
    )
    over_pcie = any(not pair.nvlinks for pair in found.pairs)
    if not over_pcie:
        return Check("PCIe topology", "ok", joined, "NVLink carries the traffic between the cards")
    if found.redirecting is None and found.iommu:
        return Check(
            "PCIe topology",
            "unknown",
            f"{joined}; an IOMMU is on, and only root may read ACS",
            "no ACS redirection between the cards",
            "sudo lspci -vvv | grep ACSCtl: ReqRedir+ sends the cards' traffic through the root; turn it off",
        )
    redirecting = found.redirecting or ()
    return check(
        "PCIe topology",
        not redirecting,
        f"{joined}; ACS redirects at {', '.join(redirecting)}" if redirecting else joined,
        "no ACS redirection between the cards",
        "turn ACS off in the firmware (or with setpci, until the next boot): it sends traffic between "
        "cards through the root, and on X99 boards breaks it",
    )
