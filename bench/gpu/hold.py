"""Holds all of a GPU's free memory except GIB gibibytes for SECONDS, then releases it.

    python hold.py GIB SECONDS
"""

import sys
import threading

import torch

spare, seconds = float(sys.argv[1]), float(sys.argv[2])
free, _ = torch.cuda.mem_get_info()
held = torch.empty(int(free - spare * 2**30), dtype=torch.uint8, device="cuda")
print(f"holding {held.numel() / 2**30:.1f} GiB", flush=True)
threading.Event().wait(seconds)
