"""The only place where the version is written."""

__version__ = "0.1.0"
