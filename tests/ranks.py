"""Run a function on N ranks: fork + gloo over a file store, in milliseconds, with a time limit."""

from __future__ import annotations

import multiprocessing
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist


def on_ranks(
    num_ranks: int,
    function: Callable[..., Any],
    *args: Any,
    timeout_s: float = 60,
    before: Callable[[int], None] = lambda rank: None,
) -> list[Any]:
    """`function(rank, *args)` on every rank; the results in rank order.

    `before(rank)` is called in the rank's process while it has no connection yet.

    The first exception of any rank is raised as AssertionError with its traceback; a hang is one too.
    """
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        pipes, processes = [], []
        for rank in range(num_ranks):
            receive, send = context.Pipe(duplex=False)
            told = (rank, num_ranks, folder, timeout_s, send, before, function, args)
            process = context.Process(target=work, args=told)
            process.start()
            send.close()
            pipes.append(receive)
            processes.append(process)
        try:
            return collect(pipes, time.monotonic() + timeout_s)
        finally:
            for process in processes:
                process.join(1)
                process.kill()
                process.join()


def collect(pipes: list[Any], deadline: float) -> list[Any]:
    results: dict[int, Any] = {}
    while len(results) < len(pipes):
        waiting = {pipe: rank for rank, pipe in enumerate(pipes) if rank not in results}
        ready = multiprocessing.connection.wait(list(waiting), max(0.0, deadline - time.monotonic()))
        if not ready:
            raise AssertionError(f"ranks {sorted(waiting.values())} did not finish in time")
        for pipe in ready:
            try:
                ok, value = pipe.recv()
            except EOFError:
                ok, value = False, "died without a word"
            if not ok:
                raise AssertionError(f"rank {waiting[pipe]}: {value}")
            results[waiting[pipe]] = value
    return [results[rank] for rank in range(len(pipes))]


def work(
    rank: int, num_ranks: int, folder: str, timeout_s: float, send: Any, before: Any, function: Any, args: tuple
) -> None:
    torch.set_num_threads(1)
    try:
        before(rank)
        store = dist.FileStore(str(Path(folder) / "store"), num_ranks)
        dist.init_process_group(
            "gloo", store=store, rank=rank, world_size=num_ranks, timeout=timedelta(seconds=timeout_s)
        )
        result = function(rank, *args)
        dist.barrier()
        dist.destroy_process_group()
        send.send((True, result))
    except BaseException:
        send.send((False, traceback.format_exc()))
