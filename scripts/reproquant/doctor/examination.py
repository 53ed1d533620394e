"""All checks, in the order of the table."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from reproquant.doctor import engines, gpus, links, room, surroundings
from reproquant.doctor.check import Check
from reproquant.doctor.reading import Reading
from reproquant.study import Study

CHECKS: tuple[Callable[[Study, Reading], Iterable[Check]], ...] = (
    gpus.present,
    gpus.same_as_studied,
    gpus.usable,
    gpus.in_form,
    links.between_gpus,
    engines.driver,
    engines.compiler,
    engines.vllm,
    engines.pythons,
    engines.containers,
    engines.pins,
    room.model,
    room.disk,
    room.memory,
    room.gpu_memory,
    surroundings.shared_memory,
    surroundings.store,
    surroundings.governor,
    surroundings.wsl,
)
