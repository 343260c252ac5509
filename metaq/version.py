"""The version of metaq. It is written in no other place."""

__version__ = "0.1.0"
