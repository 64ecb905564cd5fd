"""What bare messages say of a network (benchmarks/network.py): latency, bandwidth, overhead, whether it is shaped."""

from __future__ import annotations

import socket
import statistics
import time
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks import network
from igrad.collective import wire
from igrad.link import Link, fit_link, sent_bytes

PROBES = {  # bytes of the messages by which a path is measured: latency by small ones, bandwidth by large ones,
    "all_reduce": (24, 1_048_576, 4_194_304),  # since a token bucket lets a few kB through at once
    "all_gather": (64, 512),
}
NUM_PROBES = 9
NUM_OVERHEAD_PROBES = 200
SMALL = {"vote": ("all_reduce", torch.zeros(3, dtype=torch.float64)),  # three numbers: some ranks of a ring have none
         "all_reduce": ("all_reduce", torch.zeros(16)), "all_gather": ("all_gather", torch.zeros(16))}  # fmt: skip
ALL_REDUCE_BYTES, EXCHANGE_BYTES, NUM_EXCHANGES = 50_000_000, 30_000, 100
NUM_ROWS = 9  # of exchanges
PORT = 7070
SHAPED = ["num_ranks", "bandwidth", "what", "seconds", "wire_s", "ratio"]


def send(kind: str, mine: Tensor) -> None:
    """One message."""
    if kind == "all_reduce":
        wire.all_reduce(mine)
    else:
        wire.gather(mine.new_empty(dist.get_world_size() * mine.numel()), mine)


def probe(rank: int) -> list[tuple[str, int, int, float]]:
    """(kind, bytes, ranks, median microseconds) of bare messages, one after the other."""
    samples = []
    for kind, sizes in PROBES.items():
        for num_bytes in sizes:
            times_us = []
            for _ in range(NUM_PROBES):
                dist.barrier()
                start = time.perf_counter()
                send(kind, torch.zeros(num_bytes // 4))
                times_us.append(1e6 * (time.perf_counter() - start))
            samples.append((kind, num_bytes, dist.get_world_size(), statistics.median(times_us)))
    return samples


def overhead(rank: int) -> dict[str, float]:
    """Bytes beside the headers that a message of each kind costs this rank over what it carries; `barrier`: the frame.

    From messages so small that hardly anything but overhead is sent.
    """

    def sent(name: str, times: int) -> int:
        dist.barrier()
        before = network.carried()
        for _ in range(times):
            send(*SMALL[name])
        dist.barrier()
        return network.carried() - before

    frame = statistics.median(sent("vote", 0) for _ in range(9))
    found = {"barrier": frame}
    for name, (kind, mine) in SMALL.items():
        carried = sent_bytes(kind, mine.numel() * mine.element_size(), dist.get_world_size())
        found[name] = (sent(name, NUM_OVERHEAD_PROBES) - frame) / NUM_OVERHEAD_PROBES - carried
    return found


def kind_of(message: wire.Message) -> str:
    """Of SMALL: whose overhead it has."""
    return "vote" if message.kind == "all_reduce" and message.num_bytes <= 24 else message.kind


def beside_bytes(num_messages: Mapping[str, int], overhead_bytes: Mapping[str, float]) -> float:
    """What messages cost over what they carry."""
    return sum(overhead_bytes[kind] * number for kind, number in num_messages.items())


def path(net: network.Network) -> Link:
    """What bare messages say of a network."""
    return fit_link([sample for rank in net.on_ranks(probe) for sample in rank])


# ---------------------------------------------------------------------------------------------- is it shaped


def shaping(rank: int) -> tuple[float, float]:
    """Seconds of a dense all-reduce, and of exchanges in a row: a rank to the next, over plain sockets.

    Of the exchanges the median of some rows. A library's own latency per message, which differs by a factor of two
    between readings, would hide what is asked here: whether the bucket lets small payloads through.
    """
    buffer = torch.zeros(ALL_REDUCE_BYTES // 4)
    dist.barrier()
    start = time.perf_counter()
    send("all_reduce", buffer)
    all_reduce_s = time.perf_counter() - start
    with socket.create_server((network.address(rank), PORT)) as server:
        dist.barrier()
        following = (rank + 1) % dist.get_world_size()
        with socket.create_connection((network.address(following), PORT)) as out, server.accept()[0] as incoming:
            out.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return all_reduce_s, statistics.median(exchanges(out, incoming) for _ in range(NUM_ROWS))


def exchanges(out: socket.socket, incoming: socket.socket) -> float:
    """Seconds of NUM_EXCHANGES, one after the other."""
    payload = bytes(EXCHANGE_BYTES)
    dist.barrier()
    start = time.perf_counter()
    for _ in range(NUM_EXCHANGES):
        out.sendall(payload)
        missing = EXCHANGE_BYTES
        while missing:
            received = incoming.recv(missing)
            if not received:
                raise OSError("a rank has gone while exchanges were timed")
            missing -= len(received)
    return time.perf_counter() - start


def check_shaping(ranks: list[tuple[float, float]], bandwidth: str, bits_per_s: float) -> list[dict[str, Any]]:
    """What the slowest rank took, beside the arithmetic.

    Arithmetic: the bytes in full packets at the rate, headers and an acknowledgement per two packets included.
    """
    num_ranks = len(ranks)
    per_byte = (network.MTU_BYTES + 14 + network.HEADER_BYTES / 2) / network.SEGMENT_BYTES
    sent = {f"all-reduce of {ALL_REDUCE_BYTES / 1e6:.0f} MB": sent_bytes("all_reduce", ALL_REDUCE_BYTES, num_ranks),
            f"{NUM_EXCHANGES} exchanges of {EXCHANGE_BYTES / 1e3:.0f} kB": NUM_EXCHANGES * EXCHANGE_BYTES}  # fmt: skip
    rows = []
    for (what, num_bytes), seconds in zip(sent.items(), map(max, zip(*ranks, strict=True)), strict=True):
        wire_s = 8 * per_byte * num_bytes / bits_per_s
        rows.append(dict(zip(SHAPED, (num_ranks, bandwidth, what, seconds, wire_s, seconds / wire_s), strict=True)))
    return rows
