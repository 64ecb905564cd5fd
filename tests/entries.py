"""Entry points for ranks that stand in for igrad.train.main, and a launcher that can be interrupted."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from tqdm import tqdm


def report(directory: str, inputs: Any) -> None:
    """Each rank writes what it was given."""
    dist.init_process_group("gloo")
    total = torch.ones(1)
    dist.all_reduce(total)
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS")
    told = {"env": {name: os.environ[name] for name in names}, "inputs": inputs, "sum": total.item(),
            "threads": torch.get_num_threads(), "pid": os.getpid()}  # fmt: skip
    Path(directory, f"told{dist.get_rank()}.json").write_text(json.dumps(told))
    print(f"rank {dist.get_rank()} speaks", flush=True)
    dist.destroy_process_group()


def one_raises(directory: str, inputs: Any) -> None:
    """Rank 1 raises; rank 0 waits for it in a collective, for ever."""
    dist.init_process_group("gloo")
    if dist.get_rank() == 1:
        raise ValueError("window 7 is empty\nand a second line")
    dist.all_reduce(torch.ones(1))


def one_is_killed(directory: str, inputs: Any) -> None:
    """Rank 1 ends without a word, as when memory runs out."""
    dist.init_process_group("gloo")
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(1))


def all_wait(directory: str, inputs: Any) -> None:
    """A run that never ends, with a progress bar as a real one has."""
    bar = tqdm(total=10, disable=True)
    bar.get_lock()
    dist.init_process_group("gloo")
    Path(directory, f"pid{dist.get_rank()}").write_text(str(os.getpid()))
    if dist.get_rank() == 1:
        time.sleep(600)
    dist.all_reduce(torch.ones(1))


def launch(directory: str, entry: str) -> int:
    """A launcher in a process of its own; the exit code is that of run.py."""
    from omegaconf import OmegaConf

    from igrad import ranks

    ranks.PRELOAD = ["torch"]
    ranks.handle_signals()
    ranks.start_forkserver()
    cfg = OmegaConf.create({"num_processes": 2, "cluster": {"_target_": "igrad.cluster.local.Local"}})
    try:
        ranks.run_ranks(cfg, directory, "inputs", entry)
    except ranks.Interrupted as interrupted:
        return 128 + interrupted.signum
    except ranks.RankError:
        return 1
    finally:
        ranks.stop_forkserver()
    return 0


if __name__ == "__main__":
    sys.exit(launch(*sys.argv[1:]))
