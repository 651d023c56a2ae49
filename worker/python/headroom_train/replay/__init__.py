"""A step run again in pieces."""
