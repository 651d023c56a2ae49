"""The version of this package. In a copy that the headroom binary has unpacked, it is the version
of that binary."""

__version__ = "0.1.dev0"
