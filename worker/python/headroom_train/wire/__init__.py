"""What headroom is told."""
