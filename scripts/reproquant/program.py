"""Command lines out of signatures: one required option for each parameter of a script's ``main``."""

from __future__ import annotations

import argparse
import inspect
import sys
import typing
from collections.abc import Callable


def run(main: Callable[..., None]) -> None:
    """Call ``main`` with the options of this process.

    A parameter ``some_name: T`` is ``--some-name``; one with a default may be left
    out; one of type ``list[T]`` takes any number of words.
    """
    parser = argparse.ArgumentParser(description=sys.modules[main.__module__].__doc__)
    hints = typing.get_type_hints(main)
    for name, parameter in inspect.signature(main).parameters.items():
        of = typing.get_args(hints[name])
        many = typing.get_origin(hints[name]) is list
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            type=of[0] if of else hints[name],
            required=parameter.default is parameter.empty,
            default=parameter.default,
            nargs="+" if many else None,
        )
    main(**vars(parser.parse_args()))
