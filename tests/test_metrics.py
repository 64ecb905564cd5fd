"""Windows, times and the files of a run directory."""

import json
import time

import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from igrad.interfaces import Payload, SyncStats, View
from igrad.metrics import (
    COLUMNS,
    PHASES,
    RATES,
    ComponentTrace,
    MetricsFile,
    Timer,
    Window,
    means,
    read_rows,
    whole_periods,
)


@given(st.integers(1, 1000), st.integers(1, 64))
def test_whole_periods_is_the_next_multiple(steps, period):
    rounded = whole_periods(steps, period)
    assert rounded % period == 0 and steps <= rounded < steps + period


# ------------------------------------------------------------------------------------- times and rates


def test_a_timer_adds_up_per_phase_until_it_is_drained():
    timer = Timer(torch.device("cpu"))
    for _ in range(2):
        with timer("pack"):
            time.sleep(0.01)
    with timer("exchange"):
        time.sleep(0.005)
    found = timer.drain()
    assert list(found) == list(PHASES)
    assert found["pack"] >= 20 and found["exchange"] >= 5
    assert found["compute"] == found["select"] == found["unpack"] == 0
    assert not any(timer.drain().values())


def test_a_phase_within_another_stops_the_outer_clock():
    timer = Timer(torch.device("cpu"))
    with timer("compute"):
        time.sleep(0.01)
        with timer("select"):
            time.sleep(0.03)
            with pytest.raises(ValueError), timer("pack"):
                raise ValueError
    found = timer.drain()
    assert found["select"] >= 30 and 10 <= found["compute"] < 30


def test_rates_are_means_per_step():
    window = Window()
    payload = Payload("v", 0, 1, torch.ones(1), None)
    for i in range(4):
        released = i == 3
        stats = SyncStats(90 + 300 * released, 39 + 120 * released, 8 * released, 1 + i / 4, i / 4, i, i / 2)
        stats.payloads = (payload,)
        window.add(torch.tensor(float(i)), stats + SyncStats(payload_bytes=10, wire_bytes=1))
    rates = window.rates(2.0, {phase: 20.0 for phase in PHASES}, tokens_per_step=1000)
    assert rates == {
        "tokens_per_s": 2000, "step_ms": 500, **{f"{phase}_ms": 5 for phase in PHASES}, "payload_bytes": 175,
        "wire_bytes": 70, "bucket_imbalance": 1.375, "bucket_cv": 0.375, "num_released": 2,
        "num_overflows": 1.5, "predicted_exchange_ms": 0.75,
    }  # fmt: skip
    assert set(rates) == set(RATES) <= set(COLUMNS)
    assert not any(stats.payloads for stats in window.stats), "a window does not hold the payloads' memory"


def test_means_are_over_all_whole_periods_but_the_first_window():
    def row(step, value):
        return {"step": step, **dict.fromkeys(RATES, value)}

    rows = [row(0, None), row(8, 1000.0), row(16, 2.0), row(40, 4.0), row(43, None)]
    found = means(rows)
    assert found["wire_bytes"] == found["step_ms"] == (8 * 2 + 24 * 4) / 32, "a longer window counts for more"
    assert found["tokens_per_s"] == (8 * 2 * 2 + 24 * 4 * 4) / (8 * 2 + 24 * 4), "all tokens over all seconds"
    assert means(rows[:2]) == dict.fromkeys(RATES, 1000), "one window is better than none"
    assert means(rows[:1]) == {}


# ------------------------------------------------------------------------------------------------ files


def test_every_row_has_every_column_and_is_on_disk_at_once(tmp_path):
    path = tmp_path / "metrics.jsonl"
    file = MetricsFile(path)
    file.write({"step": 0, "val_loss": 2.5})
    file.write({"step": 8, "train_loss": float("nan"), "val_ppl": float("inf")})
    rows = read_rows(path)
    assert all(list(row) == list(COLUMNS) for row in rows)
    assert rows[0]["val_loss"] == 2.5 and rows[0]["train_loss"] is None
    assert rows[1]["train_loss"] is rows[1]["val_ppl"] is None, "JSON has no word for what is not finite"
    with pytest.raises(AssertionError, match="lossy"):
        file.write({"step": 9, "lossy": 1})


def killed(path, steps):
    """The file of a run that was killed while it wrote a row."""
    file = MetricsFile(path)
    for step in steps:
        file.write({"step": step, "val_loss": step / 8})
    with path.open("a") as half:
        half.write('{"step": 99, "val_l')


def test_a_half_written_last_row_is_passed_over(tmp_path):
    path = tmp_path / "metrics.jsonl"
    killed(path, (0, 8))
    assert [row["step"] for row in read_rows(path)] == [0, 8]
    assert read_rows(tmp_path / "none.jsonl") == []


@pytest.mark.parametrize(("first", "kept"), ((16, [0, 8, 16]), (12, [0, 8]), (0, [0])))
def test_a_resumed_run_writes_on_after_its_checkpoint(tmp_path, first, kept):
    path = tmp_path / "metrics.jsonl"
    killed(path, (0, 8, 16, 24))
    file = MetricsFile(path, keep_until_step=first)
    assert [row["step"] for row in file.rows] == kept
    file.write({"step": 100})
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["step"] for row in rows] == [*kept, 100]
    assert rows == file.rows


def test_a_new_run_starts_an_empty_file(tmp_path):
    path = tmp_path / "metrics.jsonl"
    killed(path, (0, 8))
    assert MetricsFile(path).rows == [] == read_rows(path)


# ------------------------------------------------------------------------------------------- components

VIEWS = [
    View("0.q", "0.q", "0.q", (4, 4)),
    View("0.q.bias", "0.q", "0.q.bias", (9,)),
    View("norm", None, "norm", (3,)),
    View("1.v", "1.v", "1.v", (5,)),
]


def sent(view, *values):
    return Payload(view, 0, 100, torch.tensor(values), torch.arange(len(values)))


def test_ages_count_steps_since_a_component_last_sent(tmp_path):
    """0.q sends every step, 1.v at the third of every four: the loop is the oracle."""
    trace = ComponentTrace(VIEWS, tmp_path / "components.parquet")
    last, ages = -1, []
    for step in range(12):
        payloads = (sent("0.q", 1.0),)
        if step % 4 == 2:
            payloads += (sent("1.v", 1.0, 1.0),)
            last = step
        ages.append(step - last)
        trace.add(payloads, step)
        if step % 6 == 5:
            trace.close(step + 1, {})
    rows = pd.DataFrame(trace.rows).set_index(["component", "step"])
    assert not rows.loc["0.q", ["staleness_steps", "max_staleness_steps"]].any(axis=None)
    for end in (6, 12):
        mine = ages[end - 6 : end]
        assert rows.loc[("1.v", end), "staleness_steps"] == sum(mine) / 6
        assert rows.loc[("1.v", end), "max_staleness_steps"] == max(mine) == 3
    assert rows["sent_entries"].to_dict() == {("0.q", 6): 6, ("0.q", 12): 6, ("1.v", 6): 2, ("1.v", 12): 4}


def test_activity_and_residual_norm_are_over_all_views_of_a_component_and_all_steps(tmp_path):
    trace = ComponentTrace(VIEWS, tmp_path / "components.parquet")
    trace.add((sent("0.q", 3.0), sent("0.q.bias", 4.0), sent("norm", 100.0)), 0)
    trace.add((sent("0.q", 5.0), sent("1.v", 3.0)), 1)
    trace.close(2, {VIEWS[0]: 6.0, VIEWS[1]: 8.0, VIEWS[2]: 100.0, VIEWS[3]: 0.5})
    q, v = trace.rows
    assert (q["component"], q["residual_norm"], q["sent_entries"]) == ("0.q", 10, 3)
    assert q["activity"] == pytest.approx(((9 + 16 + 25) / 25 / 2) ** 0.5)
    assert (v["component"], v["residual_norm"], v["sent_entries"]) == ("1.v", 0.5, 1)
    assert v["activity"] == pytest.approx((9 / 5 / 2) ** 0.5), "a step that sends nothing counts as zero"


def test_a_resumed_trace_keeps_the_rows_up_to_its_checkpoint(tmp_path):
    path = tmp_path / "components.parquet"
    trace = ComponentTrace(VIEWS, path)
    for step in (4, 8, 12):
        trace.close(step, {})
    trace.write()
    written = pd.read_parquet(path)
    assert [p.name for p in tmp_path.iterdir()] == [path.name], "no temporary file stays"
    resumed = ComponentTrace(VIEWS, path, first=8)
    pd.testing.assert_frame_equal(pd.DataFrame(resumed.rows), written[written["step"] <= 8])
    resumed.add((sent("0.q", 1.0),), 8)
    resumed.close(9, {})
    resumed.write()
    assert pd.read_parquet(path)["step"].tolist() == [4, 4, 8, 8, 9, 9]
    assert ComponentTrace(VIEWS, path).rows == [], "a run from the start has no past"
