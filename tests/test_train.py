"""Whole runs on forked ranks: equal to DDP, replicas equal, resumable, and honest in what they record."""

from __future__ import annotations

import itertools
import json
import time
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from igrad import profile
from igrad.data import batch, load_windows
from igrad.metrics import COLUMNS, RATES, read_rows
from igrad.model import load_model
from igrad.train import Run, schedule
from tests import tiny
from tests.ranks import on_ranks

ALL_OFF = ("sparsifier=none", "threshold=all", "collective=dense")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    return tiny.inputs(tmp_path_factory.mktemp("tiny"))


def flat(model) -> np.ndarray:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()]).numpy()


def trained(rank, cfg, directory, inputs, change=None):
    """Parameters after a run; `change(run)` may interfere before it starts."""
    directory.mkdir(parents=True, exist_ok=True)
    run = Run(cfg, directory, inputs, torch.device("cpu"), time.time())
    if change is not None:
        change(run)
    run.train()
    return flat(run.model)


# ----------------------------------------------------------------------------------- 3. degenerates to DDP


def with_ddp(rank, cfg, inputs):
    """The same training, written by hand around torch's own DistributedDataParallel."""
    model = load_model(inputs.model)
    model.train()
    ddp = DistributedDataParallel(model)
    options = dict(betas=(0.9, 0.999), weight_decay=0.01, fused=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.learning_rate, **options)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: schedule(step, cfg.steps, cfg.warmup_fraction)
    )
    ids, _ = load_windows(inputs.windows)["train"]
    for step in range(cfg.steps):
        chosen = batch(len(ids), cfg.seed, step, rank, dist.get_world_size(), cfg.batch_size)
        window = torch.from_numpy(ids[chosen].astype(np.int64))
        optimizer.zero_grad()
        ddp(input_ids=window, labels=window).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), cfg.max_grad_norm)
        optimizer.step()
        scheduler.step()
    return flat(model)


@pytest.mark.parametrize("method", ("residual=full", "residual=delayed", "residual=none", "synchronizer=dense"))
@pytest.mark.parametrize("num_ranks", (2, 3))
def test_without_any_saving_it_is_torch_ddp(num_ranks, method, inputs, tmp_path):
    """Bit for bit on two ranks, to rounding on more; a memory that stays empty is not flushed."""
    cfg = tiny.config(*ALL_OFF, method)
    ours = on_ranks(num_ranks, trained, cfg, tmp_path / "run", inputs)
    theirs = on_ranks(num_ranks, with_ddp, cfg, inputs)
    assert abs(theirs[0] - flat(load_model(inputs.model))).max() > 1e-2, "training moved the weights"
    for mine in ours:
        if num_ranks == 2:
            assert (mine == theirs[0]).all()
        else:
            assert abs(mine - theirs[0]).max() < 1e-4


@pytest.mark.parametrize("method", ("residual=full", "synchronizer=dense"))
def test_gradients_reach_weights_that_are_fused_and_transposed(method, inputs, tmp_path):
    """GPT-2 keeps q, k, v in one weight, and all of them transposed: every view is a part of a parameter."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    shape = {"vocab_size": tiny.VOCABULARY, "n_positions": tiny.LENGTH, "n_embd": 16, "n_layer": 2, "n_head": 4}
    still = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    GPT2LMHeadModel(GPT2Config(**shape, **still)).save_pretrained(tmp_path / "gpt2")
    fused = replace(inputs, model=str(tmp_path / "gpt2"))
    cfg = tiny.config(*ALL_OFF, method)
    mine, other = on_ranks(2, trained, cfg, tmp_path / "run", fused)
    theirs = on_ranks(2, with_ddp, cfg, fused)[0]
    assert (mine == other).all() and abs(theirs - flat(load_model(fused.model))).max() > 1e-2
    assert (mine == theirs).all()


# -------------------------------------------------------------------------- 2. replicas agree after a run


@pytest.fixture(scope="module")
def scores(inputs, tmp_path_factory):
    """A profile made by a profiling run, as the launcher would."""
    folder = tmp_path_factory.mktemp("profile")
    path = folder / "scores.parquet"
    cfg = tiny.config("threshold=knee", "profile_window=[2,10]")
    on_ranks(2, trained, profile.profiling(cfg), folder / "run", profile.replace(inputs, trace_to=str(path)))
    return str(path)


def without_a_gradient(run):
    """Rank 1 does not use layer 1's MLP in some steps: its gradients are None there."""
    backward = run.backward

    def partly(step):
        loss = backward(step)
        if run.rank == 1 and step % 3 == 0:
            for name, parameter in run.model.named_parameters():
                if "layers.1.mlp" in name:
                    parameter.grad = None
        return loss

    run.backward = partly


@pytest.mark.parametrize("change", (None, without_a_gradient), ids=("all", "some"))
@pytest.mark.parametrize("deferral", ("zeros", "skip"))
def test_replicas_end_bitwise_equal(deferral, change, inputs, scores, tmp_path):
    cfg = tiny.config("threshold=knee", "density=0.1", f"deferral={deferral}")
    first, second = on_ranks(2, trained, cfg, tmp_path / "run", profile.replace(inputs, profile=scores), change)
    assert (first == second).all()
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["low"] and summary["important"], "the test is about a mixture"
    assert summary["final"]["val_loss"] < summary["initial"]["val_loss"] - 0.1


# ---------------------------------------------------------------------- 6. resume = uninterrupted


class Killed(Exception):
    pass


def die_at_step(step):
    def change(run):
        apply = run.apply
        calls = iter(range(10**6))

        def dying(stats):
            if next(calls) == step:
                raise Killed
            apply(stats)

        run.apply = dying

    return change


def interrupted(rank, cfg, directory, inputs):
    with pytest.raises(Killed):
        trained(rank, cfg, directory, inputs, die_at_step(14))
    return trained(rank, cfg, directory, inputs)


REMEMBERS = (
    ("residual=full",),
    ("residual=delayed", "split=by_rank"),
    ("residual=dgc", "sparsifier=threshold", "packing=overlap", "block_numel=100"),
    ("deferral=local", "deferral.outer_momentum=0.9", "sparsifier=threshold", "index_codec=gap8"),
    ("collective=auto", "value_codec=int8", "release=staggered"),
    ("index_codec=gap8", "num_buckets=3"),
    ("collective=auto", "index_codec=gap8", "collective.latency_us=0", "collective.bytes_per_us=1"),
)


@pytest.mark.parametrize("options", REMEMBERS, ids=" ".join)
def test_a_resumed_run_equals_an_uninterrupted_one(options, scores, tmp_path):
    """With dropout, whose draws go on too; a checkpoint is rounded up to the end of a logged window."""
    inputs = tiny.inputs(tmp_path / "inputs", dropout=0.2)
    cfg = tiny.config("threshold=knee", *options, "release_period=4", "checkpoint_every=5", "eval_every=16")
    with_profile = profile.replace(inputs, profile=scores)
    straight = on_ranks(2, trained, cfg, tmp_path / "straight", with_profile)
    resumed = on_ranks(2, interrupted, cfg, tmp_path / "resumed", with_profile)
    assert (straight[0] == resumed[0]).all() and (straight[1] == resumed[1]).all()
    rows = [read_rows(tmp_path / name / "metrics.jsonl") for name in ("straight", "resumed")]
    same = ("step", "val_loss", "residual_norm", "total_wire_bytes")
    assert [[row[name] for name in same] for row in rows[0]] == [[row[name] for name in same] for row in rows[1]]
    for table in ("components", "messages"):
        frames = [pd.read_parquet(tmp_path / name / f"{table}.parquet") for name in ("straight", "resumed")]
        pd.testing.assert_frame_equal(*frames)


# ------------------------------------------------------------------------------------- what is recorded


class Broken:
    """A tracker of which one method fails."""

    def __init__(self, method):
        self.method, self.num_calls = method, 0

    def __getattr__(self, name):
        def act(*_, **__):
            self.num_calls += 1
            if name == self.method:
                raise RuntimeError("gone")

        return act


def tracked(rank, cfg, directory, inputs, method):
    """Train with a broken tracker; how often it was called until it broke, and after that."""
    tracker = Broken(method)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("igrad.record.build", lambda node: tracker)
        trained(rank, cfg, directory, inputs)
    return tracker.num_calls


@pytest.mark.parametrize("method", ("start", "profile", "heatmap", "log", "finish"))
def test_a_run_outlives_its_tracker(method, inputs, scores, tmp_path, capfd):
    """Whatever part of it fails, with whatever error: told once, never asked again, the run's own files are whole."""
    cfg = tiny.config("threshold=knee", "steps=8", "log_every=4", "eval_every=4")
    [num_calls, _] = on_ranks(2, tracked, cfg, tmp_path / "run", profile.replace(inputs, profile=scores), method)
    assert capfd.readouterr().out.count("tracking broke down (gone)") == 1
    calls = ("start", "profile", "heatmap", *["log", "heatmap"] * 2)  # until all methods but `finish` were called
    assert num_calls == calls.index(method) + 1 if method in calls else num_calls > len(calls)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "finished"
    assert [row["step"] for row in read_rows(tmp_path / "run" / "metrics.jsonl")] == [0, 4, 8, 9]


def test_the_run_directory(inputs, scores, tmp_path):
    cfg = tiny.config("threshold=knee", "release_period=4", "log_every=5", "eval_every=9", "steps=22", "density=0.1")
    on_ranks(2, trained, cfg, tmp_path / "run", profile.replace(inputs, profile=scores))
    rows = read_rows(tmp_path / "run" / "metrics.jsonl")
    assert all(tuple(row) == COLUMNS for row in rows)
    assert [row["step"] for row in rows] == [0, 8, 16, 22, 23], (
        "5 and 9 steps become whole periods; the flush is a step"
    )
    assert [row["step"] for row in rows if row["val_loss"] is not None] == [0, 16, 22, 23]
    whole, partial = rows[1], rows[3]
    assert all(whole[name] is not None for name in RATES)
    assert all(partial[name] is None for name in RATES), "22 steps end in the middle of a period"
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["status"] == "finished"
    assert summary["means"]["wire_bytes"] == rows[2]["wire_bytes"]
    assert summary["totals"]["wire_bytes"] + summary["totals"]["flush_wire_bytes"] == rows[-1]["total_wire_bytes"]
    frame = pd.read_parquet(tmp_path / "run" / "components.parquet")
    low = frame[frame["component"].isin(summary["low"]) & (frame["step"] == 16)]
    high = frame[frame["component"].isin(summary["important"]) & (frame["step"] == 16)]
    assert (low["max_staleness_steps"] == 3).all() and (high["max_staleness_steps"] == 0).all()
    assert (low["staleness_steps"] == 1.5).all()
    reloaded = load_model(tmp_path / "run" / "checkpoints" / "final")
    assert flat(reloaded).shape == flat(load_model(inputs.model)).shape


def evaluated(rank, cfg, directory, inputs):
    return Run(cfg, directory, inputs, torch.device("cpu"), time.time()).evaluate()


@pytest.mark.parametrize(
    ("synchronizer", "log_every", "last"), [("importance", 1, 9), ("dense", 1, 9), ("dense", 4, 12)]
)
def test_a_diverged_run_ends_before_the_next_evaluation(synchronizer, log_every, last, inputs, tmp_path, capfd):
    """From step 2 on there is no loss. The rows are there, and no rank is left behind."""
    cfg = tiny.config("learning_rate=1e30", "max_grad_norm=null", f"log_every={log_every}", "release_period=1",
                      f"synchronizer={synchronizer}", "eval_every=16")  # fmt: skip
    said = rf"the training loss is nan at step {last}: training diverged; lower learning_rate"
    with pytest.raises(AssertionError, match=said):
        on_ranks(2, trained, cfg, tmp_path / "run", inputs)
    rows = read_rows(tmp_path / "run" / "metrics.jsonl")[1:]
    assert [row["step"] for row in rows] == list(range(log_every, last + 1, log_every))
    assert [row["train_loss"] is None for row in rows] == [False] + [True] * (len(rows) - 1)
    assert f"step {last}/20 loss nan" in capfd.readouterr().out
    assert not (tmp_path / "run" / "summary.json").exists()


def spoil_one_loss(run, factor):
    backward = run.backward
    run.backward = lambda step: backward(step) * (factor if step == 5 else 1)


def test_a_batch_without_a_loss_ends_no_run(inputs, tmp_path):
    """None of its tokens may count."""
    spoil = partial(spoil_one_loss, factor=float("nan"))
    on_ranks(1, trained, tiny.config("log_every=1", "release_period=1"), tmp_path / "run", inputs, spoil)
    rows = read_rows(tmp_path / "run" / "metrics.jsonl")
    assert [row["step"] for row in rows if 0 < row["step"] <= 20 and row["train_loss"] is None] == [6]


def test_one_loss_that_overflows_is_no_divergence(inputs, tmp_path):
    """A window of more steps than patience has the mean of the others."""
    spoil = partial(spoil_one_loss, factor=float("inf"))
    on_ranks(1, trained, tiny.config("log_every=10", "release_period=1"), tmp_path / "run", inputs, spoil)
    rows = read_rows(tmp_path / "run" / "metrics.jsonl")
    assert all(row["train_loss"] is not None for row in rows if 0 < row["step"] <= 20)


def strides_after_a_step(rank, cfg, directory, inputs):
    run = Run(cfg, directory, inputs, torch.device("cpu"), time.time())
    view, parameter = next((v, p) for v, p in run.parameters.items() if len(v.shape) == 2)
    parameter.data = parameter.data.t().contiguous().t()
    run.optimizer_step(0)
    return view.shape, parameter.stride(), parameter.grad.stride()


def test_a_gradient_has_the_strides_of_its_parameter(inputs, tmp_path):
    """The fused optimizer walks through both by memory."""
    cfg = tiny.config("synchronizer=importance")
    [(shape, of_parameter, of_gradient)] = on_ranks(1, strides_after_a_step, cfg, tmp_path / "run", inputs)
    assert of_parameter == of_gradient == (1, shape[0])


def test_an_evaluation_that_is_no_number_fails_a_run(inputs, tmp_path):
    cfg = tiny.config("learning_rate=1e30", "max_grad_norm=null", "steps=4")
    with pytest.raises(AssertionError, match="validation loss is nan: training diverged; lower learning_rate"):
        on_ranks(1, trained, cfg, tmp_path / "run", inputs)


def test_evaluation_does_not_depend_on_the_number_of_ranks(inputs, tmp_path):
    cfg = tiny.config()
    results = [on_ranks(n, evaluated, cfg, tmp_path, inputs) for n in (1, 2, 3)]
    for ranks in results:
        assert all(result == ranks[0] for result in ranks)
        assert ranks[0]["val_loss"] == pytest.approx(results[0][0]["val_loss"], rel=1e-6)
        assert ranks[0]["val_accuracy"] == pytest.approx(results[0][0]["val_accuracy"])
    assert results[0][0]["val_ppl"] == pytest.approx(np.exp(results[0][0]["val_loss"]))


def test_micro_batches_are_averaged(inputs, tmp_path):
    runs = [
        on_ranks(1, trained, tiny.config(*ALL_OFF, *split, "steps=3"), tmp_path / str(i), inputs)[0]
        for i, split in enumerate((("batch_size=4",), ("batch_size=2", "micro_batches=2")))
    ]
    assert abs(runs[0] - runs[1]).max() < 1e-4


def dtypes(rank, cfg, directory, inputs):
    run = Run(cfg, directory, inputs, torch.device("cpu"), time.time())
    run.backward(0)
    hidden = run.model.model.layers[0].mlp.up_proj
    seen = []
    hidden.register_forward_hook(lambda module, args, output: seen.append(output.dtype))
    run.backward(1)
    return (
        {str(p.dtype) for p in run.model.parameters()},
        {str(g.dtype) for g in run.gradients().values()},
        str(seen[0]),
    )


def test_bf16_computes_on_fp32_parameters(inputs, tmp_path):
    assert on_ranks(1, dtypes, tiny.config("precision=bf16"), tmp_path, inputs) == [
        ({"torch.float32"}, {"torch.float32"}, "torch.bfloat16")
    ]


def test_clip_local_clips_before_and_global_after(inputs, tmp_path):
    """Clipping each rank's gradient first leaves another mean than clipping the mean."""
    ends = [
        on_ranks(
            2, trained, tiny.config(*ALL_OFF, f"clip={clip}", "max_grad_norm=0.01", "steps=4"), tmp_path / clip, inputs
        )
        for clip in ("local", "global")
    ]
    assert (ends[0][0] == ends[0][1]).all()
    assert abs(ends[0][0] - ends[1][0]).max() > 1e-6


def clipped(rank, cfg, directory, inputs):
    """Norms of both groups after a clip in which half of the views are local and large, the others small."""
    directory.mkdir(exist_ok=True)
    run = Run(cfg, directory, inputs, torch.device("cpu"), time.time())
    local = frozenset(view.name for view in list(run.parameters)[::2])
    for view, parameter in run.parameters.items():
        parameter.grad = torch.full_like(parameter, 1.0 if view.name in local else 1e-6)
    run.clip(local)
    groups = {True: [], False: []}
    for view, parameter in run.parameters.items():
        groups[view.name in local].append(parameter.grad.norm())
    untouched = all((p.grad == 1e-6).all() for view, p in run.parameters.items() if view.name not in local)
    return torch.stack(groups[True]).norm().item(), untouched


def test_what_is_local_is_clipped_by_a_norm_of_its_own(inputs, tmp_path):
    [(norm, untouched)] = on_ranks(1, clipped, tiny.config("max_grad_norm=0.5"), tmp_path / "run", inputs)
    assert norm == pytest.approx(0.5, rel=1e-4) and untouched


def test_a_method_may_want_more_or_less_of_the_learning_rate(inputs, tmp_path):
    """2e-3 is twice 1e-3, to the bit."""
    ends = [
        on_ranks(1, trained, tiny.config("num_processes=1", "steps=4", *rates), tmp_path / str(i), inputs)[0]
        for i, rates in enumerate(
            (
                ("learning_rate=1e-3", "learning_rate_factor=2"),
                ("learning_rate=2e-3",),
                ("learning_rate=1e-3",),
            )
        )
    ]
    assert (ends[0] == ends[1]).all() and (ends[0] != ends[2]).any()


def test_learning_rate_schedule():
    factors = [schedule(step, 100, 0.1) for step in range(101)]
    assert factors[0] == pytest.approx(0.1) and max(factors) == factors[9] == pytest.approx(1.0)
    assert factors[99] == factors[100] == pytest.approx(0.1), "the flush uses the last rate"
    assert all(later <= earlier for earlier, later in itertools.pairwise(factors[9:]))
    assert schedule(0, 1, 0.0) == 1.0


def test_profile_of_another_model_is_refused_before_anything_starts(inputs, scores, tmp_path):
    other = tiny.config("threshold=knee", "components.embeddings=true", f"profile={scores}")
    with pytest.raises(ValueError, match=r"does not match the model: 1 components differ, first 'embed'"):
        profile.check(other, inputs)
    profile.check(tiny.config("threshold=knee", f"profile={scores}"), inputs)
    profile.check(tiny.config("threshold=all", "profile=nowhere.parquet"), inputs)
    with pytest.raises(ValueError, match=r"profile 'nowhere\.parquet' does not exist; profile=auto makes one"):
        profile.check(tiny.config("threshold=knee", "profile=nowhere.parquet"), inputs)
