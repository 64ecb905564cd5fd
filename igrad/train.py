"""One rank's life: load, train, synchronise, evaluate, record."""

from __future__ import annotations

import math
import os
import random
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from igrad import checkpoint, profile, topics
from igrad.components import map_components
from igrad.config import build
from igrad.data import Inputs, batch, load_windows
from igrad.deferral.skip import Skip
from igrad.interfaces import SyncStats, View, whole
from igrad.metrics import Timer, Window, whole_periods
from igrad.model import load_model
from igrad.record import Recorder, provenance
from igrad.trace import Trace


def main(directory: str, inputs: Inputs) -> None:
    """Run the job described by `directory`/config.yaml as one of the ranks of a torchrun job."""
    started = time.time()
    cfg = OmegaConf.load(Path(directory) / "config.yaml")
    assert isinstance(cfg, DictConfig)
    cluster = build(cfg.cluster)
    device = cluster.torch_device(cfg.num_processes, int(os.environ["LOCAL_RANK"]))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(cluster.backend(cfg.num_processes), timeout=cluster.timeout)
    try:
        Run(cfg, Path(directory), inputs, device, started).train()
        dist.barrier()  # no rank leaves while another still talks to it
    finally:
        dist.destroy_process_group()


def schedule(step: int, steps: int, warmup_fraction: float) -> float:
    """Share of the peak learning rate at a 0-based step: linear warm-up to 1, then a cosine to 0.1."""
    warmup = round(steps * warmup_fraction)
    if step < warmup:
        return (step + 1) / warmup
    progress = min(1.0, (step - warmup) / max(1, steps - 1 - warmup))
    return 0.1 + 0.45 * (1 + math.cos(math.pi * progress))


class Run:
    """All that a rank holds: data, model, optimizer, synchronizer."""

    def __init__(self, cfg: DictConfig, directory: Path, inputs: Inputs, device: torch.device, started: float) -> None:
        self.cfg, self.directory, self.inputs, self.device, self.started = cfg, directory, inputs, device, started
        self.rank, self.num_ranks = dist.get_rank(), dist.get_world_size()
        seed = (cfg.seed * 1_000_003 + self.rank) % 2**32  # dropout differs between ranks; data order has its own seed
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        self.windows = load_windows(self.inputs.windows)
        self.shard, *self.place = self.own_windows()
        self.model = load_model(self.inputs.model).to(self.device).train()
        self.components = map_components(self.model, cfg.model.get("patterns"), cfg.components.embeddings)
        by_name = dict(self.model.named_parameters())
        self.parameters = {view: by_name[view.parameter] for view in self.components.views}
        self.trained = list({id(p): p for p in self.parameters.values()}.values())
        self.optimizer = build(cfg.optimizer)(self.trained)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer,
            lambda step: cfg.learning_rate_factor * schedule(step, cfg.steps, cfg.warmup_fraction),
        )
        self.deferral = build(cfg.deferral)
        self.timer = Timer(self.device)
        self.scores: dict[str, float] = {}
        self.tau, self.important = self.choose_important()
        self.synchronizer = build(cfg.synchronizer)
        self.synchronizer.timed = self.timer
        self.synchronizer.prepare(self.values(), self.important, None)
        self.trace = Trace() if self.inputs.trace_to else None
        self.step: int | None = None  # while the backward pass runs whose gradients are final
        if self.synchronizer.overlaps:
            self.watch()

    def own_windows(self) -> tuple[np.ndarray, int, int]:
        """The training windows that this rank draws from, int64, and its place among the ranks that share them."""
        num_windows = len(self.windows["train"][0])
        if self.cfg.split == "shuffled":
            return np.arange(num_windows), self.rank, self.num_ranks
        order = torch.empty(num_windows, dtype=torch.int64)
        if self.rank == 0:  # one rank's arithmetic for all: no window is in two parts or in none
            order = torch.from_numpy(topics.by_topic(self.windows["train"][0]))
        order = order.to(self.device)
        dist.broadcast(order, src=0)
        return topics.part(order.cpu().numpy(), self.rank, self.num_ranks), 0, 1

    def choose_important(self) -> tuple[float, frozenset[str | None]]:
        threshold = build(self.cfg.threshold)
        if self.inputs.profile is None:
            return profile.important_set(dict.fromkeys(self.components.components, 0.0), threshold)
        self.scores = profile.scores(self.inputs.profile, build(self.cfg.importance), self.components.numel)
        return profile.important_set(self.scores, threshold)

    # ------------------------------------------------------------------------------------------ training

    def train(self) -> None:
        cfg = self.cfg
        log_every = whole_periods(cfg.log_every, cfg.release_period)
        eval_every = whole_periods(cfg.eval_every, log_every)
        # Between two rows sums are open; a checkpoint has none to keep.
        checkpoint_every = whole_periods(cfg.checkpoint_every, log_every) if cfg.checkpoint_every else None
        first, totals = checkpoint.load(self)
        record = Recorder(self, first, totals)
        if first == 0:
            record.write(step=0, **self.evaluate())
        window = Window()
        for step in range(first, cfg.steps):
            loss, stats = self.optimizer_step(step)
            record.step(stats, step)
            window.add(loss, stats)
            del stats  # its payloads hold what the next step has no use for
            done = step + 1
            if done % log_every == 0 or done == cfg.steps:
                record.close(window, done, self.evaluate if done % eval_every == 0 or done == cfg.steps else dict)
                if checkpoint_every and done % checkpoint_every == 0 and done < cfg.steps:
                    checkpoint.save(self, done, record.state())
                window = Window()
        flushed = self.flush()
        if flushed is not None:
            record.flushed(flushed, self.evaluate())
        if self.trace is not None:
            self.save_profile()
        else:
            checkpoint.save_final(self)
        record.finish()

    def optimizer_step(self, step: int) -> tuple[Tensor, SyncStats]:
        """Local gradients, their exchange, the update; this rank's mean loss (0-dim, on the device)."""
        with self.timer("compute"):
            loss = self.backward(step)
            gradients = self.gradients()
        local = {v: g.clone() for v, g in gradients.items()} if self.profiles(step) else None
        stats = self.synchronizer.synchronize(gradients, step)
        with self.timer("unpack"):
            self.take(gradients)
        if local is not None:
            self.update_trace(local, stats, step)
        with self.timer("compute"):
            self.apply(stats)
        return loss, stats + self.synchronizer.reconcile(self.values(), step)

    def backward(self, step: int) -> Tensor:
        """Mean loss over this rank's micro-batches (0-dim, on the device); their mean gradient is in .grad."""
        cfg = self.cfg
        input_ids, labels = self.windows["train"]
        self.optimizer.zero_grad()
        total = torch.zeros((), device=self.device)
        for micro in range(cfg.micro_batches):
            drawn = batch(len(self.shard), cfg.seed, step, *self.place, cfg.batch_size, micro, cfg.micro_batches)
            chosen = self.shard[drawn]
            self.step = step if micro == cfg.micro_batches - 1 else None
            with self.autocast():
                loss = self.model(
                    input_ids=self.to_device(input_ids[chosen]), labels=self.to_device(labels[chosen]), use_cache=False
                ).loss
            (loss / cfg.micro_batches).backward()
            total += loss.detach() / cfg.micro_batches
        self.step = None
        return total

    def watch(self) -> None:
        """Tell the synchronizer of every gradient as soon as it is final."""
        views_of: dict[torch.nn.Parameter, list[View]] = {}
        for view, parameter in self.parameters.items():
            views_of.setdefault(parameter, []).append(view)

        def is_final(parameter: torch.nn.Parameter) -> None:
            if self.step is not None:
                for view in views_of[parameter]:
                    self.synchronizer.ready(view, view.part(parameter.grad), self.step)

        for parameter in views_of:
            parameter.register_post_accumulate_grad_hook(is_final)

    def gradients(self) -> dict[View, Tensor]:
        """Every view's part of its gradient; a parameter that was not used in this step counts as zero."""
        for parameter in self.trained:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        if self.cfg.clip == "local":
            self.clip()
        return {view: view.part(parameter.grad) for view, parameter in self.parameters.items()}

    def take(self, gradients: dict[View, Tensor]) -> None:
        """What the views' gradients have become is that of their parameters."""
        for view, parameter in self.parameters.items():
            if view.part is whole and parameter.is_contiguous():  # fused optimizers go by memory, not by strides
                parameter.grad = gradients[view]
            elif (part := view.part(parameter.grad)).data_ptr() != gradients[view].data_ptr():
                part.copy_(gradients[view])

    def apply(self, stats: SyncStats) -> None:
        if self.cfg.clip == "global":
            self.clip(stats.local)
        self.learning_rate = self.optimizer.param_groups[0]["lr"]
        self.deferral.step(self.optimizer, self.parameters, stats.deferred)
        self.scheduler.step()

    def clip(self, local: frozenset[str] = frozenset()) -> None:
        """By the global norm; views whose gradients are the rank's own (`local`) by a norm of theirs."""
        if self.cfg.max_grad_norm is None:
            return
        if not local:
            torch.nn.utils.clip_grad_norm_(self.trained, self.cfg.max_grad_norm)
            return
        parts: dict[bool, list[Tensor]] = {True: [], False: []}
        for view, parameter in self.parameters.items():
            parts[view.name in local].append(view.part(parameter.grad))
        for gradients in filter(None, parts.values()):
            norm = torch.nn.utils.get_total_norm(gradients)
            torch._foreach_mul_(gradients, (self.cfg.max_grad_norm / (norm + 1e-6)).clamp(max=1.0))

    def flush(self) -> SyncStats | None:
        """One more optimizer step with all that is held back, at the last learning rate.

        Views that the synchronizer brought together by itself take no part in it.
        """
        self.optimizer.zero_grad()
        gradients = self.gradients()
        stats = self.synchronizer.flush(gradients, self.values())
        self.take(gradients)
        if stats is not None:
            if self.cfg.clip == "global":
                self.clip()
            Skip().step(self.optimizer, self.parameters, stats.deferred)
        return stats

    # ---------------------------------------------------------------------------------------- evaluation

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Nats per token, their exponential, and next-token accuracy on the held-out windows; the same on all ranks."""
        input_ids, labels = self.windows["eval"]
        count = min(self.cfg.eval_windows, len(input_ids))
        chosen = np.linspace(0, len(input_ids) - 1, count).round().astype(np.int64)[self.rank :: self.num_ranks]
        batches = [chosen[i : i + self.cfg.batch_size] for i in range(0, len(chosen), self.cfg.batch_size)]
        totals = torch.zeros(3, dtype=torch.float64, device=self.device)  # nats, hits, tokens
        self.model.eval()
        for part in batches:
            with self.autocast():
                logits = self.model(input_ids=self.to_device(input_ids[part]), use_cache=False).logits[:, :-1]
            targets = self.to_device(labels[part])[:, 1:]
            counted = targets != -100
            logits, targets = logits[counted].float(), targets[counted]
            totals[0] += torch.nn.functional.cross_entropy(logits, targets, reduction="sum")
            totals[1] += (logits.argmax(-1) == targets).sum()
            totals[2] += targets.numel()
        self.model.train()
        dist.all_reduce(totals)
        nats, hits, tokens = totals.tolist()
        loss = nats / tokens
        if not math.isfinite(loss):  # the same on all ranks
            raise ValueError(f"the validation loss is {loss}: training diverged; lower learning_rate or max_grad_norm")
        return {"val_loss": loss, "val_ppl": math.exp(min(loss, 700)), "val_accuracy": hits / tokens}

    # ----------------------------------------------------------------------------------------- profiling

    def profiles(self, step: int) -> bool:
        first, last = self.cfg.profile_window
        return self.trace is not None and first <= step < last

    def update_trace(self, local: dict[View, Tensor], stats: SyncStats, step: int) -> None:
        if stats.dropped is not None and stats.dropped:
            return  # not a number, on some rank
        payloads = {payload.view: payload for payload in stats.payloads}
        seen = {v: (v.part(self.parameters[v].data), g, payloads[v.name]) for v, g in local.items()}
        self.trace.update(seen, step)

    def save_profile(self) -> None:
        measures = self.trace.gather()
        if self.rank == 0:
            how = {**profile.provenance(self.cfg), **provenance(self.device)}
            profile.save(Path(self.inputs.trace_to), self.trace, measures, how)

    # -------------------------------------------------------------------------------------------- pieces

    def values(self) -> dict[View, Tensor]:
        return {view: view.part(parameter.data) for view, parameter in self.parameters.items()}

    def autocast(self) -> AbstractContextManager[None]:
        """bf16 compute where asked for; parameters, gradients and optimizer state stay fp32."""
        return torch.autocast(self.device.type, torch.bfloat16) if self.cfg.precision == "bf16" else nullcontext()

    def to_device(self, windows: np.ndarray) -> Tensor:
        return torch.from_numpy(windows.astype(np.int64)).to(self.device)
