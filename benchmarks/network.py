"""Ranks of one machine on a switched network of their own, whose ports have a bandwidth.

Each rank lives in a network namespace with one interface; a bridge in another connects them. Token buckets (tc tbf) at
both ends of every cable hold what a rank sends and what it gets to the rate. All of it belongs to a mount and network
namespace of this process and vanishes with it, whatever happens; an ordinary user gets a user namespace besides.
Linux with iproute2 and util-linux.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.ranks import on_ranks

CLONE_NEWNET = 0x40000000
INSIDE = "IGRAD_OWN_NETWORK"
INTERFACE = "eth0"
MTU_BYTES = 1500
SEGMENT_BYTES = MTU_BYTES - 52  # of a full packet, after IP's and TCP's headers with time stamps
HEADER_BYTES = 66  # Ethernet, IP, TCP with time stamps: what a full packet carries besides
BURST_MS = 1.0  # of the rate may leave at once: larger lets payloads of a few kB go by unthrottled, smaller loses rate
LEAST_BURST_BYTES = 3 * MTU_BYTES


def unshare() -> list[str]:
    """The command that runs another in namespaces of its own. ValueError where that is not allowed."""
    missing = [tool for tool in ("unshare", "ip", "tc", "mount") if shutil.which(tool) is None]
    if missing:
        raise ValueError(f"needs {', '.join(missing)}: install iproute2 and util-linux")
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    command = ["unshare", *user, "--net", "--mount"]
    tried = subprocess.run([*command, "true"], capture_output=True, text=True)
    if tried.returncode:
        raise ValueError(f"this system allows no network namespace: {tried.stderr.strip()}; run it as root")
    return command


def enter_own_namespaces(module: str, argv: list[str]) -> None:
    """Start this program anew in namespaces of its own, unless it is there."""
    if os.environ.get(INSIDE):
        run("mount", "-t", "tmpfs", "tmpfs", "/run")  # where `ip netns` keeps names
        return
    os.environ[INSIDE] = "1"
    command = unshare()
    os.execvp(command[0], [*command, sys.executable, "-m", module, *argv])


def run(*command: str) -> None:
    """A command that must succeed; its complaint is the error."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")


def address(rank: int) -> str:
    return f"10.77.0.{rank + 1}"


class Network:
    """`num_ranks` namespaces rank0, rank1, … behind a switch."""

    def __init__(self, num_ranks: int) -> None:
        self.num_ranks = num_ranks
        run("ip", "netns", "add", "switch")
        run("ip", "-n", "switch", "link", "add", "bridge", "type", "bridge")
        run("ip", "-n", "switch", "link", "set", "bridge", "up")
        for rank in range(num_ranks):
            space, port = f"rank{rank}", f"port{rank}"
            run("ip", "netns", "add", space)
            run("ip", "-n", space, "link", "set", "lo", "up")
            run("ip", "link", "add", INTERFACE, "netns", space, "type", "veth", "peer", "name", port, "netns", "switch")
            run("ip", "-n", "switch", "link", "set", port, "master", "bridge")
            run("ip", "-n", "switch", "link", "set", port, "up")
            run("ip", "-n", space, "addr", "add", f"{address(rank)}/24", "dev", INTERFACE)
            run("ip", "-n", space, "link", "set", INTERFACE, "up")

    def shape(self, bits_per_s: float | None) -> None:
        """Hold every port to a rate, both ways; None = as fast as the machine copies."""
        for rank in range(self.num_ranks):
            for space, device in ((f"rank{rank}", INTERFACE), ("switch", f"port{rank}")):
                subprocess.run(["ip", "netns", "exec", space, "tc", "qdisc", "del", "dev", device, "root"],
                               capture_output=True)  # fmt: skip  # there may be none
                if bits_per_s is not None:
                    burst = max(LEAST_BURST_BYTES, round(bits_per_s / 8 * BURST_MS / 1e3))
                    run("ip", "netns", "exec", space, "tc", "qdisc", "add", "dev", device, "root", "tbf",
                        "rate", f"{round(bits_per_s)}bit", "burst", str(burst), "limit", str(16 * 2**20))  # fmt: skip

    def __enter__(self) -> Network:
        return self

    def __exit__(self, *_: object) -> None:
        for space in ("switch", *(f"rank{rank}" for rank in range(self.num_ranks))):
            run("ip", "netns", "del", space)

    def on_ranks(self, function: Callable[..., Any], *args: Any, timeout_s: float = 600) -> list[Any]:
        """`function(rank, *args)` on every rank in its namespace; the results in rank order."""
        return on_ranks(self.num_ranks, function, *args, timeout_s=timeout_s, before=enter)


def enter(rank: int) -> None:
    """Move this process into the rank's namespace, and onto a core: ranks of one machine would else push each other."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path(f"/run/netns/rank{rank}").open() as space:
        if libc.setns(space.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"setns rank{rank}")
    os.environ["GLOO_SOCKET_IFNAME"] = INTERFACE
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})


def sent() -> tuple[int, int]:
    """(bytes, packets) that this rank's interface sent so far; every packet bears HEADER_BYTES."""
    [line] = [s for s in Path("/proc/net/dev").read_text().splitlines() if s.strip().startswith(f"{INTERFACE}:")]
    counters = line.split(":")[1].split()
    return int(counters[8]), int(counters[9])


def carried() -> int:
    """Bytes that this rank's interface sent so far, without the packets' headers and without what TCP sent again.

    Where nothing is shaped, a rank whose core was busy is taken for a loss now and then. The kernel counts such
    segments; none is lost in an interface's own bucket, which is not full by far.
    """
    num_bytes, num_packets = sent()
    return num_bytes - HEADER_BYTES * num_packets - SEGMENT_BYTES * sent_again()


def sent_again() -> int:
    """TCP segments that this rank's namespace sent more than once (RFC 4022's tcpRetransSegs)."""
    names, values = [s.split() for s in Path("/proc/net/snmp").read_text().splitlines() if s.startswith("Tcp:")]
    return int(values[names.index("RetransSegs")])
