"""Memory of the host for allocations that fail on a GPU."""
