"""Whether a step may be cut, where, and with which weights."""
