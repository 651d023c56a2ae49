"""What a step has done: its calls, and what they changed."""
