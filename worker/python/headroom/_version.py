"""The version of this package; if headroom has unpacked it, that of the headroom binary."""

__version__ = "0.1.dev0"
