"""The version, which is the binary's where headroom has unpacked this package."""

__version__ = "0.1.dev0"
