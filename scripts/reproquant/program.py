"""What scripts run as: the command line out of ``main``'s signature, a known failure in three lines."""

from __future__ import annotations

import argparse
import inspect
import sys
import typing
from collections.abc import Callable

from reproquant.errors import ReproquantError, of_system


def run(main: Callable[..., None]) -> None:
    """Call ``main`` with the options of this process.

    A parameter ``some_name: T`` is ``--some-name``; one with a default may be left
    out; one of type ``list[T]`` takes any number of words. A known failure ends the
    process with its three lines and code 2.
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
    given = vars(parser.parse_args())
    try:
        main(**given)
    except (ReproquantError, OSError) as error:
        told = of_system(error, parser.prog) if isinstance(error, OSError) else error
        print(told, file=sys.stderr)
        raise SystemExit(2) from None
