"""How the GPUs reach each other: NVLink, peer access, the PCIe tree, and what may stand in the way.

Peer access goes over PCIe only if the bridges in between forward it: ACS
(Access Control Services, PCIe base specification 7.7.12) can send every such
request up to the root, and an IOMMU can refuse it there.
"""

from __future__ import annotations

import re
import struct
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import pynvml

from reproquant.machine.gpu import asked, driver

PCI = Path("/sys/bus/pci/devices")
IOMMU = Path("/sys/kernel/iommu_groups")
NVLINKS = 18
TOPOLOGY = ("nvidia-smi", "topo", "-m")
TOPOLOGY_LIMIT_S = 30
STYLES = re.compile(r"\x1b\[[0-9;]*m")
"""How a terminal is told to underline the head of that table."""
TREE = {
    pynvml.NVML_TOPOLOGY_INTERNAL: "one board",
    pynvml.NVML_TOPOLOGY_SINGLE: "one PCIe switch",
    pynvml.NVML_TOPOLOGY_MULTIPLE: "several PCIe switches",
    pynvml.NVML_TOPOLOGY_HOSTBRIDGE: "one PCIe host bridge",
    pynvml.NVML_TOPOLOGY_NODE: "one NUMA node",
    pynvml.NVML_TOPOLOGY_SYSTEM: "two NUMA nodes",
}
PEER_READ, PEER_WRITE = 0, 1
EXTENDED_SPACE, ACS_ID, ACS_CONTROL = 0x100, 0x000D, 6
REDIRECTS = 0b1100
"""P2P Request Redirect (bit 2) and P2P Completion Redirect (bit 3) of the ACS control register."""


@dataclass(frozen=True)
class Pair:
    """Two GPUs by index: active NVLinks between them, peer access (None: unknown), what joins them."""

    first: int
    second: int
    nvlinks: int
    peer_access: bool | None
    joined_by: str | None


@dataclass(frozen=True)
class Links:
    """All pairs of GPUs, and for each GPU how many NVLinks it has and how many of them are on.

    ``redirecting`` names the bridges above the GPUs whose ACS redirects peer requests, None where this
    process may not read that; ``iommu`` is whether the kernel uses one; ``topology`` is what the driver's
    own tool says of several GPUs, None if it says nothing.
    """

    pairs: tuple[Pair, ...]
    nvlinks: tuple[tuple[int, int], ...]
    redirecting: tuple[str, ...] | None
    iommu: bool
    topology: str | None


def links(pci: Path = PCI, iommu: Path = IOMMU) -> Links:
    """Read the links of all GPUs; empty where there is no NVIDIA driver."""
    with driver() as handles:
        buses = [pynvml.nvmlDeviceGetPciInfo(handle).busId for handle in handles]
        pairs = tuple(
            _pair(handles, first, second, buses) for first, second in combinations(range(len(handles)), 2)
        )
        counts = tuple(_counts(handle) for handle in handles)
    return Links(
        pairs,
        counts,
        redirecting(buses, pci),
        iommu=iommu.is_dir() and any(iommu.iterdir()),
        topology=_topology() if pairs else None,
    )


def redirecting(buses: Sequence[str | bytes], pci: Path = PCI) -> tuple[str, ...] | None:
    """The bridges above these PCI addresses whose ACS redirects peer requests; None if they can't be read.

    The kernel shows the extended configuration space, where ACS stands, to root only.
    """
    bridges = {bridge for bus in buses for bridge in _bridges(_address(bus), pci)}
    found = []
    for bridge in sorted(bridges):
        space = bridge.joinpath("config").read_bytes()
        if len(space) <= EXTENDED_SPACE:
            return None
        if _acs_control(space) & REDIRECTS:
            found.append(bridge.name)
    return tuple(found) if bridges else None


def nvidia_cards(pci: Path = PCI) -> int:
    """Display controllers of NVIDIA's on the PCI bus, whether or not a driver runs them."""
    count = 0
    for device in pci.glob("*"):
        try:
            vendor, kind = (device.joinpath(name).read_text().strip() for name in ("vendor", "class"))
        except OSError:
            continue
        count += vendor == "0x10de" and kind.startswith("0x03")
    return count


def _topology() -> str | None:
    try:
        done = subprocess.run(
            TOPOLOGY, capture_output=True, text=True, errors="replace", timeout=TOPOLOGY_LIMIT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return STYLES.sub("", done.stdout).strip("\n") or None


def _pair(handles: list[Any], first: int, second: int, buses: Sequence[str | bytes]) -> Pair:
    a, b = handles[first], handles[second]
    answers = [asked("nvmlDeviceGetP2PStatus", a, b, kind) for kind in (PEER_READ, PEER_WRITE)]
    peers = None if None in answers else all(answer == pynvml.NVML_P2P_STATUS_OK for answer in answers)
    level = asked("nvmlDeviceGetTopologyCommonAncestor", a, b)
    return Pair(
        first,
        second,
        nvlinks=sum(_leads_to(a, link, buses[second]) for link in _active(a)),
        peer_access=peers,
        joined_by=TREE.get(level),
    )


def _leads_to(handle: Any, link: int, bus: str | bytes) -> bool:
    """Whether an NVLink ends at that GPU, or at a switch, through which it reaches every GPU."""
    kind = asked("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
    remote = asked("nvmlDeviceGetNvLinkRemotePciInfo", handle, link)
    at_switch = kind == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH
    return at_switch or (remote is not None and _address(remote.busId) == _address(bus))


def _counts(handle: Any) -> tuple[int, int]:
    states = [asked("nvmlDeviceGetNvLinkState", handle, link) for link in range(NVLINKS)]
    return sum(state is not None for state in states), len(_active(handle))


def _active(handle: Any) -> list[int]:
    return [link for link in range(NVLINKS) if asked("nvmlDeviceGetNvLinkState", handle, link)]


def _address(bus: str | bytes) -> str:
    """NVML's "00000000:3B:00.0" as sysfs writes it: "0000:3b:00.0"."""
    text = bus.decode() if isinstance(bus, bytes) else bus
    domain, rest = text.lower().split(":", 1)
    return f"{int(domain, 16):04x}:{rest}"


def _bridges(address: str, pci: Path) -> list[Path]:
    """The bridges between a device and its root: sysfs nests a device in the folder of its bridge."""
    device = pci / address
    if not device.exists():
        return []
    return [folder for folder in device.resolve().parents if folder.joinpath("config").is_file()]


def _acs_control(space: bytes) -> int:
    """The ACS control register in a device's configuration space; 0 if it has none."""
    at = EXTENDED_SPACE
    while at >= EXTENDED_SPACE and at + 8 <= len(space):
        head = struct.unpack_from("<I", space, at)[0]
        if head & 0xFFFF == ACS_ID:
            return int(struct.unpack_from("<H", space, at + ACS_CONTROL)[0])
        at = head >> 20
    return 0
