"""Trainings of several ranks: what one of them may do while the others wait."""
