"""A network of one's own: bytes are counted to the byte, ports have the rate, nothing is left behind."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist

from benchmarks import network
from igrad.collective import wire
from igrad.link import sent_bytes

NUMEL, TIMES = 100_000, 5


def carried_bytes(rank):
    """What the interface says of some messages, headers apart, and what they are by formula."""
    num_ranks, found = dist.get_world_size(), {}
    for kind in ("all_reduce", "all_gather"):
        dist.barrier()
        before = network.carried()
        for _ in range(TIMES):
            mine = torch.ones(NUMEL)
            if kind == "all_reduce":
                wire.all_reduce(mine)
            else:
                wire.gather(mine.new_empty(num_ranks * NUMEL), mine)
        dist.barrier()
        found[kind] = network.carried() - before, TIMES * sent_bytes(kind, 4 * NUMEL, num_ranks)
    return {**found, "sent_again": network.sent_again()}


def lose(rank):
    """On the way to a rank, what comes faster than its port is lost."""
    network.run("ip", "netns", "exec", "switch", "tc", "qdisc", "add", "dev", f"port{rank}", "root", "tbf",
                "rate", "200mbit", "burst", "25000", "limit", "50000")  # fmt: skip


def main():
    network.enter_own_namespaces("tests.benchmarks.test_network", [])
    found = {}
    for num_ranks in (2, 3):
        with network.Network(num_ranks) as net:
            net.shape(1e9)
            port = ["ip", "netns", "exec", "rank0", "tc", "qdisc", "show", "dev", network.INTERFACE]
            shaped = subprocess.run(port, capture_output=True, text=True).stdout
            found[num_ranks] = {"bytes": net.on_ranks(carried_bytes), "port": shaped}
            net.shape(None)
            found[num_ranks]["free"] = subprocess.run(port, capture_output=True, text=True).stdout
            lose(rank=1)
            found[num_ranks]["lossy"] = net.on_ranks(carried_bytes)
    print(json.dumps(found))


@pytest.fixture(scope="module")
def found():
    try:
        network.unshare()
    except ValueError as error:
        pytest.skip(str(error))
    done = subprocess.run([sys.executable, "-m", __name__], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("num_ranks", ("2", "3"))
def test_the_interface_counts_what_messages_are_by_formula(found, num_ranks):
    """Summed over ranks, within 1 %: a packet's headers are known, so hardly anything is left to calibrate."""
    for kind in ("all_reduce", "all_gather"):
        counted = sum(rank[kind][0] for rank in found[num_ranks]["bytes"])
        assert counted == pytest.approx(sum(rank[kind][1] for rank in found[num_ranks]["bytes"]), rel=0.01)


@pytest.mark.parametrize("num_ranks", ("2", "3"))
def test_what_is_lost_on_the_way_and_sent_again_is_no_message(found, num_ranks):
    ranks = found[num_ranks]["lossy"]
    again = network.SEGMENT_BYTES * sum(rank["sent_again"] for rank in ranks)
    told, counted = (sum(rank[kind][i] for rank in ranks for kind in ("all_reduce", "all_gather")) for i in (1, 0))
    assert again > 0.02 * told and counted == pytest.approx(told, rel=0.01)


@pytest.mark.parametrize("num_ranks", ("2", "3"))
def test_a_port_is_held_to_its_rate_until_it_is_not(found, num_ranks):
    assert "tbf" in found[num_ranks]["port"] and "rate 1Gbit" in found[num_ranks]["port"]
    assert "tbf" not in found[num_ranks]["free"]


def test_nothing_is_left_behind(found):
    left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
    assert not any(name in left.split() for name in ("switch", "rank0"))


if __name__ == "__main__":
    main()
