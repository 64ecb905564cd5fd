"""The slow network's table: what is compared with what, and claims that can fail."""

from __future__ import annotations

import pandas as pd
import pytest

from analysis import simulated
from benchmarks import slow_network
from benchmarks.paths import SHAPED, check_shaping
from benchmarks.slow_network import PHASES, beyond, row, typical
from benchmarks.slow_table import BANDWIDTHS, as_foretold, claims, compared, first_to_target, for_figures
from igrad import simulate

WHERE = [(2, "100"), (2, "unlimited"), (4, "100")]


def rows(overhead_ms=2.0):
    """Steps that are what they should be: noop, selection, bytes at the bandwidth, and an overhead."""
    found = []
    for num_ranks, bandwidth in WHERE:
        for method, wire_bytes, select_ms in (("noop", 0.0, 0.0), ("dense", 3e6, 0.0), ("ig_adtopk", 1e4, 3.0)):
            bits_per_s = BANDWIDTHS[bandwidth]
            exchange_ms = 8e3 * wire_bytes / bits_per_s if bits_per_s else 0.5 * (wire_bytes > 0)
            step_ms = 40.0 + select_ms + exchange_ms + overhead_ms * (wire_bytes > 0)
            found.append({"num_ranks": num_ranks, "bandwidth": bandwidth, "method": method, "step_ms": step_ms,
                          "noop_ms": 40.0, "select_ms": select_ms, "exchange_ms": exchange_ms,
                          "overhead_share": overhead_ms * (wire_bytes > 0) / 40,
                          "wire_bytes": wire_bytes, "interface_bytes": wire_bytes})  # fmt: skip
    return found


def table(measured, off=1.0):
    predictions = [
        {**row, "foretold_ms": off * row["step_ms"], "noop_alone_ms": 40.0, "per_noop": 1.5} for row in measured
    ]
    return compared(measured, predictions, {2: {"dense": 200.0, "ig_adtopk": 500.0}})


def shaped(ratio=1.0):
    return pd.DataFrame([[2, "100", "a", ratio, 1.0, ratio]], columns=SHAPED)


def test_a_row_stands_beside_its_limit_and_its_time_to_the_target():
    found = table(rows()).set_index(["num_ranks", "bandwidth", "method"])
    dense = found.loc[(2, "100", "dense")]
    assert dense["limit_ms"] == pytest.approx(40 + 240) and dense["step_ms"] == pytest.approx(282)
    assert dense["to_target_s"] == pytest.approx(200 * 0.282)
    assert found.loc[(2, "unlimited", "dense"), "limit_ms"] == 40
    assert found.loc[4, "to_target_s"].isna().all(), "of four ranks nobody told the steps"


def test_every_claim_holds_where_all_is_as_it_should_be_and_fails_where_it_is_not():
    assert all(holds for _, holds, _ in claims(table(rows()), shaped()))
    heavy = table([row | {"interface_bytes": 1.04 * row["interface_bytes"]} for row in rows(overhead_ms=9.0)], 1.25)
    found = claims(heavy, shaped(1.2))
    assert len(found) == 6 and not any(holds for _, holds, _ in found[1:])
    assert "worst 1.200 (N = 2, 100: a)" in found[1][2]
    shifted = table([row | {"overhead_share": 0.04} for row in rows()])
    assert not claims(shifted, shaped())[0][1], "noop beside itself"


def test_nothing_shaped_is_no_mistake():
    free = [row for row in rows() if row["bandwidth"] == "unlimited"]
    assert all(holds for _, holds, _ in claims(table(free), pd.DataFrame([], columns=SHAPED)))


def test_the_slowest_rank_is_held_to_the_arithmetic():
    """Full packets of 1514 bytes and half an acknowledgement carry 1448; two ranks send what they reduce once."""
    per_byte = (1514 + 33) / 1448
    reduced, exchanged = check_shaping([(4.0, 0.2), (4.5, 0.1)], "100", 100e6)
    assert reduced["wire_s"] == pytest.approx(4.0 * per_byte) and exchanged["wire_s"] == pytest.approx(0.24 * per_byte)
    assert reduced["seconds"] == 4.5 and exchanged["seconds"] == 0.2
    assert reduced["ratio"] == pytest.approx(4.5 / (4 * per_byte))


def test_a_machine_that_has_become_slower_is_no_wrong_prediction_and_decides_no_race():
    """All of ig_adtopk at N = 2 and 100 Mbit/s took half as long again, its bytes apart."""
    slow = [dict(row) for row in rows()]
    place = next(i for i, row in enumerate(slow) if (row["method"], row["bandwidth"]) == ("ig_adtopk", "100"))
    slow[place] |= {"noop_ms": 60.0, "step_ms": 0.8 + 1.5 * 45.0}
    told = [{**row, "foretold_ms": row["step_ms"], "noop_alone_ms": 40.0, "per_noop": 45 / 40} for row in rows()]
    found = compared(slow, told, {2: {"ig_adtopk": 500.0}})
    assert found.iloc[place]["foretold_ratio"] < 0.8
    assert found.iloc[place]["prediction_ratio"] == pytest.approx(1.0)
    assert found.iloc[place]["to_target_s"] == pytest.approx(500 * 0.0458)
    written, bytes_alone = as_foretold(found)
    assert written.startswith("as written before, 5 of 6 predictions within 20 %, 0.67 to 1.00 of the step")
    assert "without a trace: 6 of 6" in bytes_alone


def test_a_typical_step_is_one_that_nothing_disturbed():
    """Steps of a block differ, and one in three was held up."""
    blocks = [[{"step": ms} for ms in block] for block in ([1.0, 9.0], [50.0, 9.0], [1.0, 9.0])]
    assert typical(blocks, lambda step: step["step"]) == 5.0


def measured(noop_ms, step_ms):
    step = {**dict.fromkeys(PHASES, 0.0), "select": 4.0, "exchange": 3.0, "num_messages": 2}
    steps = [[{**step, "step": step_ms, "noop": noop_ms} for _ in range(8)] for _ in range(3)]
    return {"wire_bytes": 8000, "interface_bytes": 8260, "num_messages": {"vote": 8, "all_gather": 8}, "steps": steps}


def test_a_row_is_of_the_slowest_rank_and_overhead_of_each_beside_itself():
    """Ranks of 40 and 50 ms, whose steps take 60 both; 8 of 24 steps of the first sent a message more."""
    ranks = [measured(40.0, 60.0), measured(50.0, 60.0)]
    assert beyond(ranks[0]["steps"][0][0]) == 13.0
    for step in ranks[0]["steps"][2]:
        step["num_messages"] = 3
    found = row("topk", ranks, {"vote": 10.0, "all_gather": 20.0, "barrier": 20.0})
    assert (found["step_ms"], found["noop_ms"], found["select_ms"]) == (60.0, 50.0, 4.0)
    assert found["overhead_ms"] == 8.0 and found["overhead_share"] == pytest.approx((13 / 40 + 3 / 50) / 2)
    assert found["wire_bytes"] == 1000 and found["interface_bytes"] == (8260 - 20 - 8 * 10 - 8 * 20) / 8
    assert found["extra_messages"] == pytest.approx(1 / 3)


def test_the_steps_to_the_target_are_there():
    for num_ranks, path in slow_network.STEPS.items():
        assert {"dense", "powersgd", "local_sgd", "local_topk"} <= set(simulate.read_steps(path)), num_ranks


def test_the_first_at_the_target_is_told_with_its_factors():
    told = first_to_target(table(rows()))
    assert told[0].startswith("N = 2, 100: ig_adtopk is first at the target loss, 22.9 s; by 2.46 over dense")
    assert len(told) == 2


def test_its_rows_are_what_the_figures_draw():
    figures = for_figures(table(rows()))
    assert figures["bandwidth_mbit"].isna().sum() == 3 and set(figures["bandwidth_mbit"].dropna()) == {100.0}
    assert simulated.predicted_against_measured(figures.to_dict("records")).axes


@pytest.mark.parametrize(
    ("argv", "why"),
    [(["--methods", "topk"], "--methods must be of"), (["--num-ranks", "x"], "--num-ranks must be of 2, 3, 4, got 'x'"),
     (["--bandwidth", ""], "--bandwidth must be of"), (["--hlp"], "--help")],
)  # fmt: skip
def test_a_mistake_is_one_line(argv, why, capsys):
    assert slow_network.main(argv) == 2
    error = capsys.readouterr().err
    assert why in error and error.count("\n") == 1
