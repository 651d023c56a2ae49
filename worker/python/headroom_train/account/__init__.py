"""What holds memory: notices that it grows, and then finds the variable that holds it and the lines that fill it."""
