"""One thread in the test process too: forking after a parallel region would hang the children."""

import os

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["WANDB_MODE"] = "offline"

import torch
from hypothesis import settings

torch.set_num_threads(1)

# The same examples every time: what fails here fails everywhere. Deadlines would time a busy machine.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")
