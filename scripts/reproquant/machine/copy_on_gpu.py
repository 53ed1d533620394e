"""Measure a copy within the first visible GPU's memory, through the driver's library alone.

Run as a program: one line of JSON, {gb_per_s, array_bytes, cache_bytes}, or the
reason on stderr and code 2. A copy reads and writes each byte, so it counts twice.
Calls and numbers: CUDA driver API reference, cuda.h.
"""

from __future__ import annotations

import ctypes
import json
import sys
from typing import Any

LIBRARY = "libcuda.so.1"
ARRAY_BYTES = 1 << 30
COPIES, REPETITIONS = 8, 10
L2_CACHE_SIZE = 38
"""CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE"""


class Refused(Exception):
    """The driver's library isn't there, or answered a call with an error."""


class Driver:
    """The library, with every call checked."""

    def __init__(self, library: str = LIBRARY) -> None:
        try:
            self._library = ctypes.CDLL(library)
        except OSError as error:
            raise Refused(f"{library} can't be loaded, so there is no NVIDIA driver here: {error}") from error

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function; raises Refused with the driver's name for the error."""
        try:
            code = getattr(self._library, name)(*arguments)
        except AttributeError as error:
            raise Refused(f"this driver has no {name}") from error
        if code:
            words = ctypes.c_char_p()
            self._library.cuGetErrorName(code, ctypes.byref(words))
            raise Refused(f"{name} gave {(words.value or b'an unknown error').decode()} ({code})")


def measure(driver: Driver) -> dict[str, float | int]:
    """The best of some repetitions, each of several copies between two events."""
    device, context, cache = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_int()
    driver.call("cuInit", 0)
    driver.call("cuDeviceGet", ctypes.byref(device), 0)
    driver.call("cuDeviceGetAttribute", ctypes.byref(cache), L2_CACHE_SIZE, device)
    driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    driver.call("cuCtxSetCurrent", context)
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    driver.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    size = min(ARRAY_BYTES, free.value // 4)
    source, target = ctypes.c_uint64(), ctypes.c_uint64()
    for array in (source, target):
        driver.call("cuMemAlloc_v2", ctypes.byref(array), ctypes.c_size_t(size))
    start, end = ctypes.c_void_p(), ctypes.c_void_p()
    for event in (start, end):
        driver.call("cuEventCreate", ctypes.byref(event), 0)
    times_ms = []
    for _ in range(REPETITIONS):
        driver.call("cuEventRecord", start, None)
        for _ in range(COPIES):
            driver.call("cuMemcpyDtoDAsync_v2", target, source, ctypes.c_size_t(size), None)
        driver.call("cuEventRecord", end, None)
        driver.call("cuEventSynchronize", end)
        passed = ctypes.c_float()
        driver.call("cuEventElapsedTime", ctypes.byref(passed), start, end)
        times_ms.append(passed.value)
    driver.call("cuDevicePrimaryCtxRelease_v2", device)
    return {
        "gb_per_s": 2 * COPIES * size / min(times_ms) / 1e6,
        "array_bytes": size,
        "cache_bytes": cache.value,
    }


if __name__ == "__main__":
    try:
        print(json.dumps(measure(Driver())))
    except Refused as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from error
