"""Figures of slow and simulated networks show their tables and can be read."""

from __future__ import annotations

import numpy as np
import pytest

from analysis import simulated, style
from igrad.simulate import in_words
from rq import rq5
from tests.analysis import legible

METHODS = [name for families in rq5.FAMILIES.values() for name in families]
BANDWIDTHS, RANKS = (100.0, 1000.0, None), (2, 4)


def document(num_ranks=(2, 8, 64, 512, 4096), bandwidths=(10.0, 100.0, 1e3, 1e4, 1e5, 4e5), winners=6, dense=True):
    """Winners in stripes, factors that rise with the number of ranks; at the last cluster nobody competes."""
    fields = [
        {"num_ranks": n, "bandwidth_mbit": bandwidth, "method": METHODS[(i + j) % winners],
         "factor_over_dense": 1.5 * (i + 1) ** 2 if dense else None}
        for i, n in enumerate(num_ranks) for j, bandwidth in enumerate(bandwidths)
    ]  # fmt: skip
    return {"by": "step time", "fastest": [*fields[:-1], fields[-1] | {"method": None, "factor_over_dense": None}]}


def rows(spread=0.05):
    """Every method of RQ5 at every bandwidth and number of ranks; predictions are off by `spread`, one by half."""
    draw, table = np.random.default_rng(0), []
    for bandwidth in BANDWIDTHS:
        for num_ranks in RANKS:
            for i, method in enumerate(METHODS):
                wire_bytes, noop_ms, select_ms = 3.4e6 / 2**i * num_ranks, 25.0 * num_ranks, i / 4
                limit_ms = noop_ms + (8e-3 * wire_bytes / bandwidth if bandwidth else 0)
                measured_ms = limit_ms + select_ms + 3
                table.append({
                    "method": method, "num_ranks": num_ranks, "bandwidth_mbit": bandwidth, "wire_bytes": wire_bytes,
                    "noop_ms": noop_ms, "select_ms": select_ms, "limit_ms": limit_ms, "measured_ms": measured_ms,
                    "predicted_ms": measured_ms * (1 + draw.uniform(-spread, spread)), "exchange_ms": 2.0,
                    "noop_alone_ms": 50.0, "foretold_ms": measured_ms,
                    "over_limit": measured_ms / limit_ms, "overhead_ms": 1.0, "interface_bytes": wire_bytes,
                    "to_target_steps": 200.0, "to_target_s": 0.2 * measured_ms,
                })  # fmt: skip
    return [table[0] | {"predicted_ms": 1.5 * table[0]["measured_ms"]}, *table[1:]]


FIGURES = {
    "win_map": lambda: simulated.win_map(document()),
    "win_map of one method": lambda: simulated.win_map(document(winners=1, dense=False)),
    "predicted": lambda: simulated.predicted_against_measured(rows()),
    "predicted badly": lambda: simulated.predicted_against_measured(rows(0.5)),
    "slow_network": lambda: simulated.slow_network(rows()),
}


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_can_be_read_at_the_width_of_a_column(name):
    figure = FIGURES[name]()
    assert figure.get_figwidth() == style.WIDTH
    legible.check(figure, name)


def entries(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_a_map_names_the_fastest_of_every_field_and_its_factor():
    told = document()
    figure = simulated.win_map(told)
    [axes] = figure.axes
    names = dict(entry.split(" ") for entry in entries(figure) if entry)
    shown = {text.get_position(): text.get_text().split(" ") for text in axes.texts}
    fastest = [field for field in told["fastest"] if field["method"]]
    assert len(shown) == len(fastest) and len(set(names.values())) == 6
    for field in fastest:
        key, factor = shown[field["num_ranks"], field["bandwidth_mbit"]]
        assert names[key] == field["method"] and factor == simulated.times(field["factor_over_dense"])
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    labels = [tick.get_text() for tick in axes.get_yticklabels()]
    assert labels == [in_words(each) for each in (10, 100, 1e3, 1e4, 1e5, 4e5)]


def test_fields_cover_the_plane_around_their_values():
    for values in ([2.0], [2.0, 8.0], [1.0, 10.0, 1e5]):
        found = simulated.edges(np.array(values))
        assert len(found) == len(values) + 1 and (np.diff(found) > 0).all()
        assert (found[:-1] < values).all() and (values < found[1:]).all()


def test_predictions_lie_where_they_were_and_only_those_out_of_the_band_are_named():
    told = rows()
    figure = simulated.predicted_against_measured(told)
    [axes] = figure.axes
    shown = {tuple(point) for line in axes.get_lines() if line.get_linestyle() == "None" for point in line.get_xydata()}
    assert shown == {(row["measured_ms"], row["predicted_ms"]) for row in told}
    assert [text.get_text() for text in axes.texts] == [told[0]["method"]]
    assert figure.legends[0].get_title().get_text().startswith(f"{len(told) - 1} of {len(told)} within ± 20 %")
    assert {"100 Mbit/s", "1 Gbit/s", "unlimited", "N = 2", "N = 4"} <= set(entries(figure))


def test_the_worst_predictions_are_named_whether_too_high_or_too_low():
    told = rows()
    told[1] |= {"predicted_ms": 0.4 * told[1]["measured_ms"]}
    [axes] = simulated.predicted_against_measured(told).axes
    assert {text.get_text() for text in axes.texts} == {told[0]["method"], told[1]["method"]}


def test_bars_end_at_the_limit_and_selection_and_ticks_where_steps_did():
    told = rows()
    figure = simulated.slow_network(told)
    assert len(figure.axes) == len(BANDWIDTHS) * len(RANKS)
    titles = [axes.get_title() for axes in figure.axes]
    assert titles[0] == "100 Mbit/s, N = 2" and titles[-1] == "unlimited, N = 4"
    for axes, (bandwidth, num_ranks) in zip(figure.axes, ((b, n) for b in BANDWIDTHS for n in RANKS), strict=True):
        mine = [row for row in told if (row["bandwidth_mbit"], row["num_ranks"]) == (bandwidth, num_ranks)]
        ends = [bar.get_x() + bar.get_width() for bar in axes.containers[-1]]
        assert ends == pytest.approx([row["limit_ms"] + row["select_ms"] for row in mine])
        assert axes.get_lines()[0].get_xdata() == pytest.approx([row["measured_ms"] for row in mine])
        assert axes.get_xlim()[0] == 0 and axes.get_xlim()[1] > max(row["measured_ms"] for row in mine)
    assert [tick.get_text() for tick in figure.axes[0].get_yticklabels()] == METHODS
