"""The version of the installed package."""

from importlib import metadata

try:
    __version__ = metadata.version("dpjax")
except metadata.PackageNotFoundError:  # a folder of files that was never installed
    __version__ = "0+unknown"
