"""Trials without side effects or randomness."""
