"""Everything a run needs to go on as if it had never stopped, one file per rank and step."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist

from igrad.data import TOKENIZER_FILES

if TYPE_CHECKING:
    from igrad.train import Run


def folders(directory: Path) -> list[Path]:
    """Complete checkpoints of a run directory, oldest first."""
    return sorted((directory / "checkpoints").glob("step-????????"))


def save(run: Run, step: int, record: dict[str, Any]) -> None:
    """State after `step` optimizer steps; the older checkpoint goes when the new one is whole."""
    older = folders(run.directory)
    folder = run.directory / "checkpoints" / f"step-{step:08d}"
    partial = folder.with_suffix(".partial")
    partial.mkdir(parents=True, exist_ok=True)
    state = {
        "model": run.model.state_dict(),
        "optimizer": run.optimizer.state_dict(),
        "scheduler": run.scheduler.state_dict(),
        "synchronizer": run.synchronizer.state_dict(),
        "record": record,
        "rng": torch.get_rng_state(),
        "python_rng": random.getstate(),
        "numpy_rng": np.random.get_state(),
        "cuda_rng": torch.cuda.get_rng_state(run.device) if run.device.type == "cuda" else None,
    }
    torch.save(state, partial / f"rank-{run.rank:05d}.pt")
    dist.barrier()
    if run.rank == 0:
        partial.rename(folder)
        for old in older:
            shutil.rmtree(old)
    dist.barrier()


def load(run: Run) -> tuple[int, dict[str, Any]]:
    """Restore the newest checkpoint; (steps already done, the recorder's state), (0, {}) where there is none."""
    complete = folders(run.directory)
    if not complete:
        return 0, {}
    path = complete[-1] / f"rank-{run.rank:05d}.pt"
    state = torch.load(path, map_location=run.device, weights_only=False)  # written by this program
    run.model.load_state_dict(state["model"])
    run.optimizer.load_state_dict(state["optimizer"])
    run.scheduler.load_state_dict(state["scheduler"])
    run.synchronizer.load_state_dict(state["synchronizer"])
    torch.set_rng_state(state["rng"].cpu())
    random.setstate(state["python_rng"])
    np.random.set_state(state["numpy_rng"])
    if state["cuda_rng"] is not None:
        torch.cuda.set_rng_state(state["cuda_rng"].cpu(), run.device)
    return int(complete[-1].name.removeprefix("step-")), state["record"]


def save_final(run: Run) -> None:
    """The trained model as a transformers folder, checkpoints/final; what was needed to go on is removed."""
    if run.rank == 0:
        final = run.directory / "checkpoints" / "final"
        partial = final.with_suffix(".partial")
        for stale in (partial, final):
            shutil.rmtree(stale, ignore_errors=True)
        run.model.save_pretrained(partial)
        for file in {file for pattern in TOKENIZER_FILES for file in Path(run.inputs.model).glob(pattern)}:
            shutil.copy(file, partial)
        partial.rename(final)
        for old in folders(run.directory):
            shutil.rmtree(old)
    dist.barrier()
