"""The training loop: batches in, a head out; killed and started again it goes on from its last checkpoint."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

from eagle_repro.engine.head import Eagle3Head
from eagle_repro.engine.target import Target
from eagle_repro.training.batches import batches
from eagle_repro.training.checkpoints import Log, load_checkpoint, save_checkpoint
from eagle_repro.training.corpus import Corpus
from eagle_repro.training.heads import save_head
from eagle_repro.training.objective import Losses, Objective, Observer
from eagle_repro.training.settings import MEASURED, TrainSettings, compute_dtype, needed_bytes, require_memory
from eagle_repro.training.write import Progress, silent

SETTLED = 10  # steps that compile and warm up, left out when a step is timed


class Trainer:
    """A run: the head in training, its optimiser, and where it stands. total: steps in all, None until known."""

    def __init__(self, target: Target, head: Eagle3Head, corpus: Corpus, settings: TrainSettings, out: Path) -> None:
        require_memory(needed_bytes(target, head.config, settings), target.device)
        dtype = compute_dtype(target.device)
        compiler = shutil.which("cc") or shutil.which("gcc")  # Triton builds its launchers with one
        fast = dtype == torch.bfloat16 and compiler is not None
        self.target, self.corpus, self.settings, self.out = target, corpus, settings, out
        # float16 needs its loss scaled; otherwise the objective alone says what is computed in which precision.
        scaled = "fp16" if dtype == torch.float16 else "no"
        self.accelerator = Accelerator(cpu=target.device.type == "cpu", mixed_precision=scaled)
        self.observe = Observer(target, head, settings.sequences, settings.length)
        objective = Objective(
            head, settings.unrolled, dtype, compiled=fast if settings.compiled is None else settings.compiled
        )
        optimizer = torch.optim.AdamW(
            head.parameters(), lr=settings.rate, betas=(0.9, 0.95), weight_decay=0.0, fused=target.device.type == "cuda"
        )
        # Everything is where the target is already; the model is only wrapped for several processes.
        self.objective, self.optimizer = self.accelerator.prepare(
            objective.train(), optimizer, device_placement=[False, False]
        )
        self.head = head
        self.step, self.total, self.seconds = 0, settings.steps, 0.0
        out.mkdir(parents=True, exist_ok=True)

    @property
    def run(self) -> dict[str, Any]:
        """What a checkpoint must agree with to be gone on from."""
        said = {name: value for name, value in asdict(self.settings).items() if name not in ("log_every", "snapshots")}
        counts = self.corpus.provenance["counts"]
        return {**said, "corpus_tokens": counts["tokens"], "processes": self.accelerator.num_processes}

    def resume(self) -> None:
        """Go on from the folder's checkpoint, if it has one."""
        state = load_checkpoint(self.out, self.run)
        if state is None:
            return
        self.head.load_state_dict(state["head"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.accelerator.scaler is not None:
            self.accelerator.scaler.load_state_dict(state["scaler"])
        torch.set_rng_state(state["rng"])
        self.step, self.total, self.seconds = state["step"], state["total"], state["seconds"]

    def save(self) -> None:
        """Write the checkpoint."""
        if self.accelerator.is_main_process:
            scaler = self.accelerator.scaler
            save_checkpoint(
                self.out,
                {
                    "run": self.run,
                    "head": self.head.state_dict(),
                    "optimizer": self.optimizer.state_dict(),
                    "scaler": scaler.state_dict() if scaler is not None else None,
                    "rng": torch.get_rng_state(),
                    "step": self.step,
                    "total": self.total,
                    "seconds": self.seconds,
                },
            )

    def losses(self) -> Iterator[Losses]:
        """Train to the end, a step each time; seconds counts the time spent here, over all sessions of the run."""
        settings, processes = self.settings, self.accelerator.num_processes
        feed = batches(
            self.corpus,
            sequences=settings.sequences,
            length=settings.length,
            seed=settings.seed,
            first=self.step * processes + self.accelerator.process_index,
            stride=processes,
        )
        mark, settled = time.perf_counter() - self.seconds, 0.0
        while self.total is None or self.step < self.total:
            for group in self.optimizer.param_groups:
                group["lr"] = settings.rate_at(self.step, self.total)
            losses = self._one_step(next(feed))
            self.step += 1
            if self.total is None and self.step in (SETTLED, MEASURED):
                self._synchronise()
                now = time.perf_counter() - mark
                if self.step == MEASURED:
                    self.total = self._affordable(now, (now - settled) / (MEASURED - SETTLED))
                settled = now
            self.seconds = time.perf_counter() - mark
            yield losses

    def _one_step(self, batch: Any) -> Losses:
        batch = batch.to(self.target.device)
        losses: Losses = self.objective(batch, self.observe(batch))
        self.accelerator.backward(losses.total())
        self.accelerator.clip_grad_norm_(self.objective.parameters(), self.settings.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return Losses(*(each.detach() for each in losses))

    def _affordable(self, spent: float, step_seconds: float) -> int:
        """Steps in all that the minutes allow, the same on every process."""
        assert self.settings.minutes is not None
        total = MEASURED + max(0, int((60 * self.settings.minutes - spent) / step_seconds))
        shared: Tensor = self.accelerator.reduce(torch.tensor(float(total), device=self.target.device), "mean")
        return int(shared)

    def _synchronise(self) -> None:
        if self.target.device.type == "cuda":
            torch.cuda.synchronize(self.target.device)


def train(
    target: Target,
    head: Eagle3Head,
    corpus: Corpus,
    settings: TrainSettings,
    out: Path,
    *,
    progress: Progress[Any] = silent,
    provenance: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Train `head` in place to the end of `settings`; out gets checkpoint, log.jsonl and snapshots.

    Returns a summary: steps, seconds, tokens per second, the last losses and accuracies, the peak of memory in bytes.
    Raises RuntimeError before the first step where memory is short, and ArithmeticError for a loss that is not finite.
    """
    trainer = Trainer(target, head, corpus, settings, out)
    trainer.resume()
    began, log = trainer.step, Log(out / "log.jsonl", trainer.step)
    row = log.last
    for losses in _shown(trainer, progress):
        last = trainer.step == trainer.total
        if trainer.step % settings.log_every == 0 or last:
            row = _row(trainer, losses)
            if trainer.accelerator.is_main_process:
                log.write(row)
        if trainer.step % settings.checkpoint_every == 0 or last:
            trainer.save()
        if _is_snapshot(trainer) and trainer.accelerator.is_main_process:
            save_head(head, out / "snapshots" / f"step-{trainer.step:06d}", _provenance(trainer, provenance, row))
    trainer.accelerator.wait_for_everyone()
    tokens = settings.sequences * settings.length * trainer.accelerator.num_processes
    cuda = target.device.type == "cuda"
    return {
        "steps": trainer.step,
        "steps_before_this_session": began,
        "seconds": trainer.seconds,
        "tokens_per_second": tokens * trainer.step / trainer.seconds if trainer.seconds else None,
        "estimated_bytes": needed_bytes(target, head.config, settings),
        "peak_bytes": torch.cuda.max_memory_allocated(target.device) if cuda else None,
        "last": row,
    }


def _shown(trainer: Trainer, progress: Progress[Any]) -> Iterable[Losses]:
    left = None if trainer.total is None else trainer.total - trainer.step
    return progress(trainer.losses(), "training", left)


def _provenance(trainer: Trainer, said: dict[str, Any] | None, row: dict[str, Any]) -> dict[str, Any]:
    """What a snapshot is: its own step and seconds, and the losses of the step that was logged last."""
    return {**(said or {}), **row, "step": trainer.step, "seconds": trainer.seconds}


def _is_snapshot(trainer: Trainer) -> bool:
    """Whether a head is saved after this step: `snapshots` of them, evenly spread over the run, the last its end."""
    if not trainer.settings.snapshots or trainer.total is None:
        return False
    every = max(1, trainer.total // trainer.settings.snapshots)
    return trainer.step % every == 0


def _row(trainer: Trainer, losses: Losses) -> dict[str, Any]:
    loss = float(losses.total())
    if loss != loss or loss in (float("inf"), float("-inf")):
        raise ArithmeticError(f"the loss of step {trainer.step} is {loss}: lower --rate, or go on in another dtype")
    count = losses.counted.clamp(min=1)
    return {
        "step": trainer.step,
        "total": trainer.total,
        "seconds": trainer.seconds,
        "rate": trainer.settings.rate_at(trainer.step - 1, trainer.total),
        "loss": loss,
        "entropy": (losses.entropy / count).tolist(),
        "accuracy": (losses.right / count).tolist(),
        "counted": losses.counted.tolist(),
    }
