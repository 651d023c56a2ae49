"""Trains as restarted.py does, in functions that Ray runs in threads of its workers' processes, and that FailureConfig starts
again: the first argument is "train" (two ranks of Ray Train) or "tune" (a trial of Ray Tune). The second one names a
folder that is empty."""

import os
import sys

import ray
import torch
from ray import train, tune
from ray.train.torch import TorchConfig, TorchTrainer, prepare_model
from restarted import Net
from restarted import train as loop


def rank(config):
    torch.manual_seed(0)
    loop(config["started"], train.get_context().get_world_rank(), prepare_model(Net()))


def trial(config):
    torch.manual_seed(0)
    loop(config["started"], 0, Net())


if __name__ == "__main__":
    how, folder = sys.argv[1:]
    config = {"started": os.path.join(folder, "started")}
    ray.init(num_cpus=2, include_dashboard=False)
    if how == "train":
        run = train.RunConfig(storage_path=folder, failure_config=train.FailureConfig(max_failures=1))
        workers = train.ScalingConfig(num_workers=2)
        TorchTrainer(rank, train_loop_config=config, scaling_config=workers, run_config=run, torch_config=TorchConfig("gloo")).fit()
    else:
        run = tune.RunConfig(storage_path=folder, failure_config=tune.FailureConfig(max_failures=1))
        assert not tune.Tuner(trial, param_space=config, run_config=run).fit().errors
