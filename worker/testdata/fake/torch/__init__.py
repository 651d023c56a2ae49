"""The part of torch that the worker needs in order to start."""

import os

__version__ = "0.fake"
if os.environ.get("FAKE_TORCH_FAILS"):
    raise ImportError("libcudart.so.12: cannot open shared object file")
