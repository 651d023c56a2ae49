"""IPython and Jupyter: what a cell is told, what a failed cell leaves behind, and what memory is held for."""
