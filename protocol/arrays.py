"""Define `np`, which imports NumPy only when one of its attributes is first used. Without this delay, the import of
metaq's client would spend a third of its time on importing NumPy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["np"]

if TYPE_CHECKING:
    import numpy as np
else:

    class _NumPy:
        def __getattr__(self, name: str) -> Any:
            import numpy

            value = self.__dict__[name] = getattr(numpy, name)
            return value

    np = _NumPy()
