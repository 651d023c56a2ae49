"""The batch finder of Lightning, for search_peers.py and bench/gpu/find_peers.py."""

import logging
import tempfile
import warnings
from typing import Any


def found_by_lightning(module: Any, mode: str, steps: int, cpu: bool, bf16: bool) -> int:
    """The batch size that Lightning's tuner finds for a module with an attribute batch_size, in trials of so many steps."""
    import lightning.pytorch as pl
    from lightning.pytorch.tuner import Tuner

    for name in ["lightning.pytorch", "lightning.pytorch.utilities.rank_zero"]:
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    with tempfile.TemporaryDirectory() as folder:
        trainer = pl.Trainer(
            accelerator="cpu" if cpu else "gpu",
            devices=1,
            precision="bf16-mixed" if bf16 else "32-true",
            max_epochs=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=folder,
        )
        found = Tuner(trainer).scale_batch_size(module, mode=mode, steps_per_trial=steps)
    if found is None:
        raise RuntimeError("Lightning found no size")
    return found
