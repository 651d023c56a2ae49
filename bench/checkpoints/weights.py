"""Prints a digest of the weights in the newest checkpoint that a pattern matches: by the last number in its name, or else by time."""

import glob
import hashlib
import os
import re
import sys

import torch


def main() -> None:
    newest = max(glob.glob(sys.argv[1]), key=lambda path: (int(re.findall(r"\d+", os.path.basename(path))[-1]), os.path.getmtime(path)))
    digest = hashlib.sha256()
    for name, weight in sorted(weights(newest).items()):
        digest.update(name.encode() + weight.numpy().tobytes())
    print(os.path.basename(newest), digest.hexdigest())


def weights(path: str) -> dict[str, torch.Tensor]:
    if os.path.isdir(path):
        from safetensors.torch import load_file

        return load_file(os.path.join(path, "model.safetensors"))
    saved = torch.load(path, weights_only=False, map_location="cpu")
    return saved.get("state_dict") or saved["model"]


main()
