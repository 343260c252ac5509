"""A function that only raises, in the place of one that tests take away."""

from collections.abc import Callable
from typing import NoReturn

__all__ = ["raising"]


def raising(error: BaseException | type[BaseException]) -> Callable[..., NoReturn]:
    """It takes any arguments."""

    def fail(*_: object, **__: object) -> NoReturn:
        raise error

    return fail
