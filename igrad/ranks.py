"""The processes of a run: torchrun's elastic agent starts one per rank, and none outlives the launcher."""

from __future__ import annotations

import contextlib
import json
import logging
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
import uuid
from collections.abc import Iterator
from multiprocessing import forkserver
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.utils import get_method
from omegaconf import DictConfig, OmegaConf

from igrad.config import build, one_line, plain
from igrad.files import write_whole

if TYPE_CHECKING:
    from igrad.data import Inputs

# Importing these takes seconds. The fork server does it once, while Hydra composes; ranks are forks of it.
PRELOAD = ["torch", "transformers.models.llama.modeling_llama", "wandb", "hydra", "igrad.launch", "igrad.train"]
LOST_PEER = ("connection closed", "connection reset", "broken pipe", "connection refused", "remote process exited",
             "process group watchdog", "recvvalue failed", "read error")  # fmt: skip
LOST_PEER_WAIT_S = 1.0


class RankError(Exception):
    """A rank failed; the message is its cause in one line, the logs are in `directory`/logs."""

    def __init__(self, message: str, directory: Path):
        super().__init__(message)
        self.directory = directory


class Interrupted(BaseException):
    """A signal asked the launcher to stop; no run may swallow it, hence no Exception."""

    def __init__(self, signum: int):
        super().__init__(signal.Signals(signum).name)
        self.signum = signum


def raise_interrupted(signum: int, frame: Any) -> None:
    raise Interrupted(signum)


def handle_signals() -> None:
    """SIGINT, SIGTERM and SIGHUP end the launcher through Interrupted. The elastic agent puts its own in place."""
    if threading.current_thread() is threading.main_thread():
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(signum, raise_interrupted)


def start_forkserver() -> None:
    """Begin to import what ranks need, in the background."""
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # counting GPUs must not initialise CUDA before a fork
    # a rank that is stopped leaves the lock of its progress bar behind; multiprocessing removes it, and warns
    told = "ignore::UserWarning:multiprocessing.resource_tracker"
    os.environ["PYTHONWARNINGS"] = ",".join(filter(None, [os.environ.get("PYTHONWARNINGS"), told]))
    multiprocessing.set_forkserver_preload(PRELOAD)
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)  # inherited: Ctrl-C is this process's to tell of
    forkserver.ensure_running()
    signal.signal(signal.SIGINT, handler)


def stop_forkserver() -> None:
    """End every process that this one started, without waiting for imports."""
    for process in multiprocessing.active_children():
        process.kill()
    server = forkserver._forkserver
    if server._forkserver_pid is not None:
        os.kill(server._forkserver_pid, signal.SIGKILL)
        server._stop()


def run_ranks(cfg: DictConfig, directory: str | Path, inputs: Inputs, entry: str = "igrad.train.main") -> None:
    """Run entry(directory, inputs) on cfg.num_processes ranks and wait for them.

    Writes config.yaml, and logs/: what ranks other than the first print, tracebacks, the agent's own log.
    Raises RankError once any rank has failed and all have ended, Interrupted after SIGINT, SIGTERM or SIGHUP.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    directory = Path(directory)
    logs = directory / "logs"
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir(parents=True)
    OmegaConf.save(OmegaConf.create(plain(cfg)), directory / "config.yaml")
    with tempfile.TemporaryDirectory(prefix="igrad-") as scratch, logged(logs / "launcher.log"):
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=cfg.num_processes,
            run_id=uuid.uuid4().hex,
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",  # a free port
            local_addr="localhost",
            max_restarts=0,
            monitor_interval=0.05,
            start_method="forkserver",
            logs_specs=DefaultLogsSpecs(log_dir=scratch),
            signals_to_handle="SIGINT,SIGTERM,SIGHUP",
            shutdown_timeout=10,
        )
        try:
            elastic_launch(config, rank_main)(entry, str(directory), inputs, build(cfg.cluster).threads_per_process)
        except ChildFailedError as error:
            raise RankError(cause(logs, error), directory) from error
        except SignalException as error:
            raise Interrupted(int(error.sigval)) from error
        finally:
            handle_signals()


@contextlib.contextmanager
def logged(path: Path) -> Iterator[None]:
    """What torch's loggers say goes to a file, not to the terminal."""
    known = [logging.getLogger(name) for name in logging.root.manager.loggerDict if name.split(".")[0] == "torch"]
    before = [(logger, logger.handlers, logger.propagate) for logger in known]
    handler = logging.FileHandler(path, delay=True)
    for logger in known:
        logger.handlers, logger.propagate = [], True
    top = logging.getLogger("torch")
    top.handlers, top.propagate = [handler], False
    try:
        yield
    finally:
        for logger, handlers, propagate in before:
            logger.handlers, logger.propagate = handlers, propagate
        handler.close()


def rank_main(entry: str, directory: str, inputs: Inputs, threads: int) -> None:
    """A rank's life: as little as possible around the entry point."""
    die_with_launcher()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the agent's way to stop it; the fork server has none
    rank, logs = int(os.environ["RANK"]), Path(directory) / "logs"
    if rank > 0:
        redirect(logs / f"rank{rank}.log")
    try:
        import torch

        threads = int(os.environ.get("OMP_NUM_THREADS") or threads)
        os.environ["OMP_NUM_THREADS"] = str(threads)
        torch.set_num_threads(threads)  # the variable is read when torch is loaded, and that was before the fork
        get_method(entry)(directory, inputs)
    except Exception as error:
        record(error, rank, logs)
        raise


def die_with_launcher() -> None:
    """End this process at once when the launcher ends, however it does."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # ends at once, without a KeyboardInterrupt traceback
    launcher = multiprocessing.parent_process()
    assert launcher is not None

    def watch() -> None:
        launcher.join()  # the fork server is the parent by kinship: PR_SET_PDEATHSIG would watch the wrong one
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="die_with_launcher", daemon=True).start()


def redirect(path: Path) -> None:
    """Standard output and error of this process and of its libraries, into a file."""
    sys.stdout.flush()
    sys.stderr.flush()
    with path.open("ab", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)


def record(error: Exception, rank: int, logs: Path) -> None:
    """Leave the error for the launcher, and its traceback for the reader.

    A rank that merely lost its peer waits a little, so that the agent finds the one that died first.
    """
    message = f"{type(error).__name__}: {one_line(error)}"
    lost_peer = any(sign in message.lower() for sign in LOST_PEER)
    told = {"rank": rank, "time": time.time(), "error": message, "lost_peer": lost_peer}
    with (logs / f"rank{rank}.log").open("a") as file:
        file.write(traceback.format_exc())
    write_whole(logs / f"rank{rank}.error.json", lambda file: file.write_text(json.dumps(told)))
    if lost_peer:
        time.sleep(LOST_PEER_WAIT_S)


def cause(logs: Path, error: Any) -> str:
    """Which rank failed first and why, in one line."""
    told = [json.loads(path.read_text()) for path in logs.glob("rank*.error.json")]
    told.sort(key=lambda t: (t["lost_peer"], t["time"]))
    rank, failure = error.get_first_failure()
    if told and not (told[0]["lost_peer"] and failure.exitcode < 0):
        return f"rank {told[0]['rank']}: {told[0]['error']}"
    if failure.exitcode < 0:
        memory = " (out of memory?)" if failure.exitcode == -signal.SIGKILL else ""
        return f"rank {rank} was killed by {failure.signal_name()}{memory}"
    return f"rank {rank} exited with code {failure.exitcode}"
