"""headroom find: the largest number of rows that a training run's step can be run on, found in its own process."""
