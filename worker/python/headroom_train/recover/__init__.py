"""What is done about a failure."""
