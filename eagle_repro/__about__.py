"""The version, in one place: the build reads it from here, and so does `eagle_repro.__version__`."""

__version__ = "0.1.0"
