"""One thread in the test process too: forking after a parallel region would hang the children."""

import os

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["WANDB_MODE"] = "offline"

import torch

torch.set_num_threads(1)
