"""The version number of metaq. No other file contains this number."""

__version__ = "0.1.0"
