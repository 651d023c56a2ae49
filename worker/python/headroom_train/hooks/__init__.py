"""What is changed in torch, each change undone only if it is still ours."""
