"""Ranks on this machine, one process each."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import torch


@dataclass(frozen=True)
class Local:
    """Where the ranks of a run compute and how long they wait for each other."""

    device: str = "auto"  # auto | cpu | cuda; auto = cuda where there is one per rank, else cpu
    threads_per_process: int = 1  # more = faster ranks until num_processes * threads exceeds the cores
    timeout_s: float = 600.0  # limit on every wait for another rank; lower = a hang fails sooner, slow steps too

    def __post_init__(self) -> None:
        if self.device not in ("auto", "cpu", "cuda"):
            raise ValueError(f"device must be one of auto, cpu, cuda, got '{self.device}'")
        if self.threads_per_process < 1:
            raise ValueError(f"threads_per_process must be at least 1, got {self.threads_per_process}")
        if not self.timeout_s > 0:
            raise ValueError(f"timeout_s must be above 0, got {self.timeout_s}")

    def device_type(self, num_processes: int) -> str:
        """`cuda` or `cpu` for a run of this many ranks. ValueError when cuda is asked for and too few are there."""
        if self.device == "cpu":
            return "cpu"
        available = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if self.device == "cuda" and available < num_processes:
            raise ValueError(
                f"cluster.device=cuda needs one GPU per rank: num_processes is {num_processes}, found {available}; "
                "lower num_processes or use cluster.device=auto"
            )
        return "cuda" if available >= num_processes else "cpu"

    def torch_device(self, num_processes: int, local_rank: int) -> torch.device:
        """The device of one rank."""
        kind = self.device_type(num_processes)
        return torch.device(kind, local_rank) if kind == "cuda" else torch.device(kind)

    def backend(self, num_processes: int) -> str:
        """Process group backend: nccl between GPUs, gloo otherwise."""
        return "nccl" if self.device_type(num_processes) == "cuda" else "gloo"

    @property
    def timeout(self) -> timedelta:
        return timedelta(seconds=self.timeout_s)
