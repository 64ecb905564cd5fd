"""A loopback of one's own: what others send does not count."""

from __future__ import annotations

import ctypes
import fcntl
import multiprocessing
import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
SIOCSIFFLAGS, IFF_UP = 0x8914, 0x1


def bytes_sent() -> int:
    """Sent over the loopback of this network namespace so far, headers included."""
    [line] = [line for line in Path("/proc/net/dev").read_text().splitlines() if line.strip().startswith("lo:")]
    return int(line.split(":")[1].split()[8])


def on_own_loopback(function: Callable[..., Any], *args: Any) -> Any:
    """`function(*args)` in a child process in a network namespace that holds a loopback and nothing else."""
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=child, args=(send, function, args))
    process.start()
    send.close()
    try:
        result = receive.recv()
    finally:
        process.join()
    if isinstance(result, PermissionError):
        pytest.skip(f"this system allows no network namespace: {result}")
    if isinstance(result, Exception):
        raise result
    return result


def child(send: Any, function: Callable[..., Any], args: tuple) -> None:
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        # A user namespace of its own lets an ordinary user make a network namespace.
        if libc.unshare(CLONE_NEWNET) and libc.unshare(CLONE_NEWUSER | CLONE_NEWNET):
            raise PermissionError(ctypes.get_errno(), "unshare")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
            fcntl.ioctl(handle, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        send.send(function(*args))
    except Exception as error:
        send.send(error)
