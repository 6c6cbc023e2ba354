"""The version of dlasm, read by the build and by the program."""

__version__ = "0.1.0"
