"""All errors for users of the library: `from metaq.errors import CorruptRecord`."""

from metaq.protocol.errors import *  # noqa: F403
from metaq.protocol.errors import __all__ as __all__
