"""Devices and backends of ranks on one machine."""

import pytest
import torch

from igrad.cluster.local import Local


@pytest.mark.parametrize("gpus", [0, 1, 2, 4])
@pytest.mark.parametrize("num_processes", [1, 2, 4])
def test_auto_is_cuda_exactly_where_each_rank_has_one(monkeypatch, gpus, num_processes):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    enough = gpus >= num_processes
    assert Local().device_type(num_processes) == ("cuda" if enough else "cpu")
    assert Local().backend(num_processes) == ("nccl" if enough else "gloo")
    devices = [Local().torch_device(num_processes, rank) for rank in range(num_processes)]
    assert len(set(devices)) == (num_processes if enough else 1)
    assert Local(device="cpu").backend(num_processes) == "gloo"
    if not enough:
        with pytest.raises(ValueError, match=f"num_processes is {num_processes}, found {gpus}"):
            Local(device="cuda").device_type(num_processes)


@pytest.mark.parametrize(
    ("field", "value"), [("device", "gpu"), ("threads_per_process", 0), ("timeout_s", 0), ("timeout_s", float("nan"))]
)
def test_mistakes_name_the_value(field, value):
    with pytest.raises(ValueError, match=f"{field} must be .*, got '?{value}"):
        Local(**{field: value})
