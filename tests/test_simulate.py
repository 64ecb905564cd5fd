"""Simulated clusters: traces are read as they were recorded, and taken to other ranks and links by the laws."""

from __future__ import annotations

import json
import math
from functools import cache

import pandas as pd
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from igrad import simulate
from igrad.collective.wire import take_messages
from igrad.link import Cluster, Link, sent_bytes
from igrad.metrics import RATES, means
from igrad.simulate import Trace
from tests import tiny
from tests.ranks import on_ranks
from tests.strategies import make
from tests.test_bytes import GROWTH, apart
from tests.test_train import trained

TIMES = {"compute_ms": 40.0, "select_ms": 2.0, "pack_ms": 3.0, "exchange_ms": 9.0, "unpack_ms": 4.0}
SPARSE, WHOLE = [("all_gather", 16), ("all_gather", 4000)], [("all_reduce", 100_000)]
SCATTERED = [("all_to_all", 8), ("all_to_all", 4000), ("all_gather", 4000)]
FREE = Link(0.0, math.inf)
links = st.builds(Link, st.floats(0, 1e4), st.floats(1, 1e6))
num_ranks_of_any = st.integers(1, 4096)


def trace_of(each_step, num_ranks=2, method="m", num_steps=4, every=1, **more):
    """The same messages in each `every`-th step."""
    steps = range(every, num_steps + 1, every)
    rows = [(step, kind, num_bytes) for step in steps for kind, num_bytes in each_step]
    messages = pd.DataFrame(rows, columns=["step", "kind", "num_bytes"])
    return Trace(method, num_ranks, 1, num_steps, messages, **TIMES | more, knobs={})


def flat(num_ranks, link):
    return Cluster(num_ranks, 1, FREE, link)


# ---------------------------------------------------------------------------------------------- traces


def write(
    folder, method="dense", messages=WHOLE, seed=42, num_ranks=2, windows=(4, 8, 12), status="finished", stalled=None,
    **knobs,
):  # fmt: skip
    """A run directory; its compute time in seed 43 is 10 ms above that in 42. `stalled`: other times, by step."""
    directory = folder / f"{method}-{seed}-{num_ranks}-{len(knobs)}"
    directory.mkdir(parents=True)
    config = {"method": method, "seed": seed, "num_processes": num_ranks, "num_buckets": 1, "density": 0.01, **knobs}
    (directory / "config.yaml").write_text(yaml.safe_dump(config))
    told = TIMES | {"compute_ms": TIMES["compute_ms"] + 10 * (seed - 42)}
    (directory / "summary.json").write_text(json.dumps({"status": status}))
    rows = [{"step": 0, "step_ms": None}, *({"step": step, "step_ms": 1.0, **told} for step in windows)]
    for row in rows:
        row.update((stalled or {}).get(row["step"], {}))
    (directory / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    each = [(step + 1, *message) for step in range(max(windows, default=0)) for message in messages]
    pd.DataFrame(each, columns=["step", "kind", "num_bytes"]).to_parquet(directory / "messages.parquet")
    return directory


windows_of = st.lists(st.tuples(st.integers(1, 5), st.booleans()), max_size=5)


@settings(max_examples=30)
@given(lengths=windows_of, data=st.data())
def test_messages_and_mean_times_are_of_the_same_steps(lengths, data):
    """What a step sends, averaged over the timed steps, is the run's own mean."""
    rows, last, sent = [{"step": 0, "step_ms": None}], 0, {}
    for length, whole in lengths:
        steps = range(last + 1, last + length + 1)
        sent |= {step: data.draw(st.integers(0, 1000)) for step in steps}
        last += length
        told = dict.fromkeys(RATES, 1.0) | {"wire_bytes": sum(sent[step] for step in steps) / length}
        rows.append({"step": last, **(told if whole else dict.fromkeys(RATES))})
    steps, told = [step for window, _ in simulate.timed_windows(rows) for step in window], means(rows)
    assert bool(steps) == bool(told)
    if steps:
        assert sum(sent[step] for step in steps) / len(steps) == pytest.approx(told["wire_bytes"])


def test_a_run_is_read_without_its_first_window(tmp_path):
    trace = simulate.load(write(tmp_path, messages=SPARSE))
    assert trace.num_steps == 8 and sorted(set(trace.messages["step"])) == list(range(5, 13))
    assert {name: getattr(trace, name) for name in TIMES} == TIMES
    assert simulate.wire_bytes(trace, 2) == sum(sent_bytes(*message, 2) for message in SPARSE)


def test_a_window_in_which_the_machine_stalled_is_in_no_time(tmp_path):
    trace = simulate.load(
        write(tmp_path, windows=(4, 8, 12, 16), stalled={4: {"select_ms": 9e3}, 16: {"unpack_ms": 81.5}})
    )
    assert {name: getattr(trace, name) for name in TIMES} == TIMES and trace.num_steps == 12


def trained_all(rank, runs, inputs):
    for directory, cfg in runs:
        trained(rank, cfg, directory, inputs)


def test_the_trace_of_a_real_run_sends_what_the_run_says(tmp_path):
    """To the rounding of messages; whether it sends in every step, at releases, or dense at first as PowerSGD does."""
    methods = ("bf16", "powersgd", "topk_sync", "local_topk", "noop")
    told = ("steps=16", "log_every=8", "release_period=8", "num_processes=2")
    runs = [(tmp_path / method, tiny.config(f"+method={method}", *told)) for method in methods]
    on_ranks(2, trained_all, runs, tiny.inputs(tmp_path / "inputs"))
    for directory, cfg in runs:
        OmegaConf.save(cfg, directory / "config.yaml", resolve=True)
        trace, mean = simulate.load(directory), json.loads((directory / "summary.json").read_text())["means"]
        assert (trace.method, trace.num_ranks, trace.num_steps) == (directory.name, 2, 8)
        per_step = len(trace.messages) / trace.num_steps
        assert simulate.wire_bytes(trace, 2) == pytest.approx(mean["wire_bytes"], abs=per_step)
        assert bool(per_step) == (directory.name != "noop")


def test_seeds_and_ranks_go_together_and_other_knobs_apart(tmp_path):
    for seed, num_ranks, density in ((42, 2, 0.01), (43, 2, 0.01), (42, 4, 0.01), (42, 2, 0.1)):
        knobs = {} if density == 0.01 else {"density": density}
        write(tmp_path, "topk_sync", SPARSE, seed, num_ranks, **knobs)
    write(tmp_path, "failed", status="failed")
    methods = simulate.named(simulate.load_all([tmp_path, write(tmp_path / "other", "dense")]))
    assert {name: len(traces) for name, traces in methods.items()} == {
        "topk_sync (density=0.01)": 3, "topk_sync (density=0.1)": 1, "dense": 1,
    }  # fmt: skip
    several = methods["topk_sync (density=0.01)"]
    for asked, taken in ((1, 2), (2, 2), (3, 4), (4, 4), (4096, 4)):
        assert {trace.num_ranks for trace in simulate.nearest(several, asked)} == {taken}


def test_runs_of_no_method_are_told_apart_by_their_knobs(tmp_path):
    for seed, period in ((42, 2), (43, 2), (42, 8)):
        write(tmp_path / str(period), None, SPARSE, seed, study="rq3", release_period=period)
    methods = simulate.named(simulate.load_all([tmp_path / "2", tmp_path / "8"]))
    assert {name: len(traces) for name, traces in methods.items()} == {
        "rq3 (release_period=2)": 2, "rq3 (release_period=8)": 1,
    }  # fmt: skip


# ----------------------------------------------------------------------------------------- other ranks


def recorded(rank, k):
    """Messages of each collective for k entries that no other rank has."""
    found = {}
    for option in GROWTH:
        take_messages()
        [handle] = make("collective", option).start([[apart(rank, k)]], None)
        handle.wait()
        found[option] = [tuple(message) for message in take_messages()]
    return found


@cache
def recorded_on(num_ranks):
    return on_ranks(num_ranks, recorded, 840)[0]


@pytest.mark.parametrize("option", GROWTH)
def test_other_ranks_send_what_they_were_recorded_to_send(option):
    """From two ranks to more and back; within what rounds up to whole entries."""
    for before, after in ((2, 3), (2, 4), (4, 2)):
        trace = trace_of(recorded_on(before)[option], before, num_steps=1)
        told = simulate.among(trace, after)
        expected = recorded_on(after)[option]
        assert told["kind"].to_list() == [kind for kind, _ in expected]
        assert told["num_bytes"].to_list() == pytest.approx([num_bytes for _, num_bytes in expected], abs=8)


@pytest.mark.parametrize("option", GROWTH)
def test_bytes_grow_by_the_law_of_each_collective(option):
    trace = trace_of(recorded_on(2)[option], num_steps=1)
    law = GROWTH[option]
    for num_ranks in (2, 4, 8, 64):
        control_bytes = 8 * (num_ranks - 1) if option == "reduce_scatter" else 0
        entries = simulate.wire_bytes(trace, num_ranks) - control_bytes
        first = simulate.wire_bytes(trace, 2) - (8 if control_bytes else 0)
        assert entries / first == pytest.approx(law(num_ranks) / law(2))


def test_an_owner_gathers_an_entry_at_least():
    gathered = simulate.among(trace_of(SCATTERED), 10**6)["num_bytes"].iloc[-1]
    assert gathered == simulate.RECORD_BYTES


def test_one_rank_tells_nothing_of_what_others_get():
    with pytest.raises(ValueError, match="recorded on one rank"):
        simulate.among(trace_of(SCATTERED, num_ranks=1), 2)


@settings(max_examples=30)
@given(num_ranks=num_ranks_of_any)
def test_only_what_every_rank_receives_takes_longer_to_unpack(num_ranks):
    for each_step, grown in ((WHOLE, 1), (SCATTERED, 1), ([], 1), (SPARSE, num_ranks / 2)):
        trace = trace_of(each_step)
        assert simulate.local_ms(trace, num_ranks) == pytest.approx(2 + 3 + 4 * grown)


# ---------------------------------------------------------------------------------------------- a step


@settings(max_examples=30)
@given(link=links, num_ranks=num_ranks_of_any, each_step=st.sampled_from([SPARSE, WHOLE, SCATTERED, []]))
def test_a_step_is_compute_work_and_messages_and_never_beats_its_bytes(link, num_ranks, each_step):
    trace, cluster = trace_of(each_step), flat(num_ranks, link)
    took_ms = simulate.step_ms(trace, cluster)
    own_ms = simulate.step_ms(trace, flat(num_ranks, FREE))
    assert own_ms == pytest.approx(40 + simulate.local_ms(trace, num_ranks))
    assert took_ms == pytest.approx(own_ms + simulate.communication_ms(trace, cluster))
    assert simulate.step_ms(trace, cluster, 100.0) == pytest.approx(took_ms + 60)
    limit = simulate.limit_ms(trace, cluster)
    assert 40 <= limit <= took_ms * (1 + 1e-9)
    assert limit == pytest.approx(40 + simulate.wire_bytes(trace, num_ranks) / link.bytes_per_us / 1e3)


@settings(max_examples=30)
@given(link=links, num_ranks=num_ranks_of_any, period=st.sampled_from([1, 2, 4]))
def test_what_is_sent_every_few_steps_costs_that_share(link, num_ranks, period):
    """A periodic release, and one of as many messages spread over the period."""
    always, seldom = trace_of(SPARSE), trace_of(SPARSE, every=period)
    cluster = flat(num_ranks, link)
    told = simulate.communication_ms(seldom, cluster) * period
    assert told == pytest.approx(simulate.communication_ms(always, cluster))


@settings(max_examples=30)
@given(link=links, each_step=st.sampled_from([SPARSE, WHOLE, SCATTERED]), num_ranks=st.integers(2, 64))
def test_where_a_run_was_recorded_a_step_takes_what_it_took(link, each_step, num_ranks):
    """Unless its exchange was faster than the link explains: then what it explains."""
    trace, cluster = trace_of(each_step, num_ranks), flat(num_ranks, link)
    explained_ms = simulate.communication_ms(trace, cluster)
    took_ms = simulate.step_ms(trace, cluster, recorded=link)
    assert took_ms == pytest.approx(sum(TIMES.values()) + max(0.0, explained_ms - TIMES["exchange_ms"]))


def test_work_within_the_exchange_stays_on_a_faster_link():
    """A factorisation, say: the rest of the exchange goes, it does not."""
    link, num_ranks = Link(10.0, 1e3), 2
    plain = trace_of(WHOLE, exchange_ms=simulate.communication_ms(trace_of(WHOLE), flat(num_ranks, link)))
    factorised = trace_of(WHOLE, exchange_ms=plain.exchange_ms + 5)
    first, second = (simulate.step_ms(trace, flat(64, FREE), recorded=link) for trace in (plain, factorised))
    assert second - first == pytest.approx(5)


# ------------------------------------------------------------------------------------------------ grid

METHODS = {
    "dense": [trace_of(WHOLE, method="dense")],
    "sparse": [trace_of(SPARSE, method="sparse")],
    "noop": [trace_of([], method="noop")],
}
SLOW, FAST = flat(2, Link(0.0, 1.0)), flat(2, FREE)
CLUSTERS = {(2, 8.0): SLOW, (2, 1e9): FAST, (4096, 8.0): flat(4096, Link(0.0, 1.0))}


def test_the_fastest_is_one_that_communicates():
    found = simulate.simulate(METHODS, CLUSTERS, 40.0)
    assert len(found["rows"]) == len(METHODS) * len(CLUSTERS)
    few, free, many = found["fastest"]
    assert (few["method"], free["method"], many["method"]) == ("sparse", "dense", "dense"), "shares pile up"
    rows = {row["method"]: row for row in found["rows"][: len(METHODS)]}
    assert few["factor_over_dense"] == rows["dense"]["step_ms"] / rows["sparse"]["step_ms"] > 1
    assert many["factor_over_dense"] == 1 and not rows["noop"]["competes"]
    assert rows["noop"]["step_ms"] < rows["sparse"]["step_ms"]


def test_time_to_a_target_counts_steps_and_only_those_who_reach_it():
    """Ten times the steps undo what is saved on them; who communicates does not matter."""
    slower = simulate.simulate(METHODS, CLUSTERS, 40.0, steps={"dense": 100.0, "sparse": 1000.0})
    assert [each["method"] for each in slower["fastest"]] == ["dense"] * 3
    alone = simulate.simulate(METHODS, CLUSTERS, 40.0, steps={"noop": 1e6})["fastest"][0]
    assert alone["method"] == "noop" and alone["factor_over_dense"] is None
    row = slower["rows"][1]
    assert row["time_s"] == pytest.approx(row["steps"] * row["step_ms"] / 1e3)
    nobody = simulate.simulate(METHODS, CLUSTERS, 40.0, steps={})["fastest"]
    assert all(each["method"] is None for each in nobody)


def test_seeds_are_averaged():
    several = [trace_of(WHOLE, select_ms=select_ms) for select_ms in (1.0, 3.0)]
    one, both = (simulate.simulate({"dense": traces}, {(2, 8.0): SLOW}, 40.0)["rows"][0]
                 for traces in ([trace_of(WHOLE, select_ms=2.0)], several))  # fmt: skip
    assert one == both


# --------------------------------------------------------------------------------------------- command


@pytest.fixture
def study(tmp_path):
    folder = tmp_path / "study"
    for method, messages in (("dense", WHOLE), ("topk_sync", SPARSE), ("noop", [])):
        for seed in (42, 43):
            write(folder, method, messages, seed)
    return folder


def told(study, *options):
    out = study.parent / "simulated.json"
    return simulate.main([str(study), "--out", str(out), *options]), out


def test_the_command_tells_the_fastest_of_every_cluster(study, capsys):
    code, out = told(study, "--num-ranks", "2,4096", "--bandwidth", "10Mbit,2.5Gbit")
    printed, document = capsys.readouterr().out, json.loads(out.read_text())
    assert code == 0 and str(out) in printed and "do not compete: noop" in printed
    assert "10 Mbit/s" in printed and "2.5 Gbit/s" in printed and "N = 4096" in printed and "assumed" in printed
    assert {(each["num_ranks"], each["bandwidth_mbit"]) for each in document["fastest"]} == {
        (2, 10.0), (2, 2500.0), (4096, 10.0), (4096, 2500.0),
    }  # fmt: skip
    assert document["compute_ms"] == TIMES["compute_ms"] + 5, "the median of the runs"
    assert document["fastest"][0]["method"] == "topk_sync" and len(document["rows"]) == 3 * 4


def test_steps_to_the_target_decide(study, capsys):
    steps = study.parent / "steps.csv"
    for column in ("steps", "to_target_steps"):
        steps.write_text(f"method,{column}\ndense,100\ntopk_sync,\nnoop,100\nnot_recorded,1\n")
        code, out = told(study, "--num-ranks", "2", "--bandwidth", "1Gbit", "--steps", str(steps))
        assert code == 0 and "do not compete: topk_sync (never reaches the target)\n" in capsys.readouterr().out
        assert json.loads(out.read_text())["fastest"][0]["method"] == "noop"


def test_who_is_not_in_the_table_of_steps_is_said_apart(study, capsys):
    steps = study.parent / "steps.csv"
    steps.write_text("method,steps\ndense,100\ntopk_sync,\n")
    assert told(study, "--steps", str(steps))[0] == 0
    said = "do not compete: noop (not in the table of steps), topk_sync (never reaches the target)\n"
    assert said in capsys.readouterr().out
    assert told(study)[0] == 0
    assert "do not compete: noop (sends nothing)\n" in capsys.readouterr().out


@pytest.mark.parametrize("options, why", (
    (["--num-ranks", "2,many"], "whole numbers of at least 1, got 'many'"),
    (["--num-ranks", "0"], "at least 1, got '0'"),
    (["--bandwidth", "fast"], "look like 100Mbit or 2.5Gbit, got 'fast'"),
    (["--bandwidth", "0Mbit"], "above 0"),
    (["--latency-us", "-1"], "latency_us must be at least 0, got -1"),
    (["--compute-ms", "nan"], "compute-ms must be at least 0, got nan"),
    (["--num-ranks", "12", "--ranks-per-node", "8"], "multiple of ranks_per_node 8, got 12"),
    (["--steps", "nowhere.csv"], "nowhere.csv"),
))  # fmt: skip
def test_a_mistake_is_one_line(study, capsys, options, why):
    code, out = told(study, *options)
    said = capsys.readouterr()
    assert code == 2 and not out.exists() and not said.out
    assert said.err.startswith("error: ") and said.err.count("\n") == 1 and why in said.err


@pytest.mark.parametrize("text, why", (("a,b\n1,2\n", "must have columns method and steps, has a, b"),
                                       ("method,steps\ndense,0\n", "numbers above 0"),
                                       ("method,steps\ndense,soon\n", "numbers above 0"),
                                       ("method,steps\ndense,1\ndense,2\n", "two rows of dense"),
                                       ("method,steps\nother,5\ndense,\n", "no recorded method reaches the target"),
                                       ("method,steps\nother,5\n", "names no method that was recorded")))  # fmt: skip
def test_a_table_of_steps_that_cannot_be_is_an_error(study, capsys, text, why):
    steps = study.parent / "steps.csv"
    steps.write_text(text)
    assert told(study, "--steps", str(steps))[0] == 2 and why in capsys.readouterr().err


def test_a_place_without_a_trace_is_an_error(tmp_path, capsys):
    """Nothing there, a failed run, one of an older version, one whose windows are no whole periods."""
    old, short = write(tmp_path, "old"), write(tmp_path, "short", windows=())
    (old / "messages.parquet").unlink()
    failed = write(tmp_path, "failed", status="failed")
    for place, why in ((tmp_path / "nowhere", "holds no finished run"), (failed, "holds no finished run"),
                       (old, "has no messages.parquet"), (short, "no window of whole release periods")):  # fmt: skip
        assert simulate.main([str(place)]) == 2
        assert why in capsys.readouterr().err


def test_profiling_runs_are_not_a_studys(tmp_path, capsys):
    """They lie beside the profiles that they made; passed over in a mixed folder, refused alone."""
    profiled = write(tmp_path / "profiles")
    profiled.with_name(f"{profiled.name}.parquet").touch()
    for place in (profiled, tmp_path / "profiles"):
        assert simulate.main([str(place)]) == 2
        said = capsys.readouterr().err
        assert said == f"error: {place} holds what made a profile; name a study in outputs/ or a run of one\n"
    assert simulate.load_all([write(tmp_path / "study").parent])


def test_a_studys_name_is_not_its_path(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run = write(tmp_path / "outputs" / "rq3")
    for name, meant in (("rq3", "outputs/rq3"), (f"rq3/{run.name}", f"outputs/rq3/{run.name}")):
        assert simulate.main([name]) == 2
        assert capsys.readouterr().err == f"error: {name} holds no finished run; did you mean {meant}?\n"
    assert simulate.main(["rq4"]) == 2
    assert capsys.readouterr().err == "error: rq4 holds no finished run\n"
