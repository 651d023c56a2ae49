"""Checks whether a recovered run has the same results as the undisturbed one."""

from __future__ import annotations

import math

import torch

from trial import ROUNDING, Record, Tensors


def differs(want: Tensors, got: Tensors, tolerance: float) -> str:
    """Returns the name of the tensor that is off by the most, relative to its largest element, and says by how
    much it is off. Empty if no tensor is off by more than ``tolerance``. A tensor that is zero except for
    rounding errors is measured against a tenth of the largest element of all tensors.
    """
    if want.keys() != got.keys():
        return f"other tensors: {sorted(want.keys() ^ got.keys())}"
    largest = max(
        (t.abs().max().item() for t in want.values() if t is not None and t.numel() and t.is_floating_point()),
        default=0.0,
    )
    worst, said = 0.0, ""
    for name, a in want.items():
        b = got[name]
        if a is None or b is None:
            if a is not b:
                return f"{name} is {'missing' if b is None else 'there, which should be missing'}"
            continue
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"{name} is {b.dtype} {tuple(b.shape)}, not {a.dtype} {tuple(a.shape)}"
        if not a.numel():
            continue
        a, b = (torch.view_as_real(t) if t.is_complex() else t for t in (a, b))
        off = (a.double() - b.double()).abs().max().item() / (max(a.double().abs().max().item(), 0.1 * largest) or 1.0)
        if math.isnan(off) and not torch.equal(a.isnan(), b.isnan()):
            return f"{name} is not a number"
        if off > max(worst, tolerance):
            worst, said = off, f"{name} is off by {off:.2g}"
    return said


def close(want: torch.Tensor, got: torch.Tensor, tolerance: float = 1e-5) -> bool:
    """Whether a tensor has the values of the undisturbed one, except for rounding errors, which are measured against its
    largest element: an element near zero is a sum of larger numbers, and how it is rounded differs between processors.
    What is not finite is close to nothing.
    """
    return bool(got.isfinite().all()) and not differs({"": want}, {"": got}, tolerance)


def roughly(want: Tensors, got: Tensors) -> str:
    """What is wrong with gradients that were computed with different random numbers; empty if
    nothing is. They must be finite, of the same shapes, and of about the same length and direction.
    """
    if said := differs(want, got, math.inf):
        return said
    pairs = [
        (a.double().flatten(), b.double().flatten())
        for a, b in ((t, got[name]) for name, t in want.items())
        if a is not None and b is not None
    ]
    a, b = torch.cat([p[0] for p in pairs]), torch.cat([p[1] for p in pairs])
    if not bool(b.isfinite().all()):
        return "not finite"
    ratio, cosine = (b.norm() / a.norm()).item(), (a @ b / a.norm() / b.norm()).item()
    return "" if 0.6 < ratio < 1.7 and cosine > 0.7 else f"length {ratio:.2f} of the undisturbed, cosine {cosine:.2f}"


def wrong(want: Record, got: Record, step: int, tolerance: float, dropout: bool) -> str:
    """What is wrong with a run that survived a failure in the given step; empty if nothing is."""
    for i in range(step + 2):
        if len(want.gradients[i]) != len(got.gradients[i]):
            return f"step {i}: {len(got.gradients[i])} optimizer steps, not {len(want.gradients[i])}"
    if dropout and exact(want, got, step, tolerance):
        # From the failure on, random numbers may be drawn in another order.
        early = "" if step == 0 else exact(want, got, step - 2, 0.0)
        for a, b in zip(want.gradients[step], got.gradients[step]):
            early = early or roughly(a, b)
        return early
    return exact(want, got, step, tolerance)


def exact(want: Record, got: Record, step: int, tolerance: float) -> str:
    for i in range(step + 2):
        # The steps after one that was run in pieces begin with weights that differ by rounding errors.
        allowed = 0.0 if i < step else tolerance if i == step else 10 * tolerance
        for a, b in zip(want.gradients[i], got.gradients[i]):
            if said := differs(a, b, allowed):
                return f"gradients of step {i}: {said}"
        if said := differs(want.weights[i + 1], got.weights[i + 1], allowed):
            return f"weights after step {i}: {said}"
        if i < min(len(want.printed), len(got.printed)):
            for x, y in zip(want.printed[i], got.printed[i]):
                if abs(x - y) > max(10 * allowed, ROUNDING) * max(abs(x), 1e-3) and not (
                    math.isnan(x) and math.isnan(y)
                ):
                    return f"printed in step {i}: {y}, not {x}"
    return ""
