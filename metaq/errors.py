"""All exception classes that users of the library can catch; for example `from metaq.errors import CorruptRecord`."""

from metaq.protocol.errors import *  # noqa: F403
from metaq.protocol.errors import __all__ as __all__
