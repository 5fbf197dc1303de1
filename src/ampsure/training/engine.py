"""The training loop: any likelihood, any posterior, resumable at every step."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from ampsure.config import TrainingConfig
from ampsure.errors import AmpsureError
from ampsure.likelihoods import Likelihood
from ampsure.posteriors import Posterior

from .checkpoint import copy_into, read_checkpoint, write_checkpoint
from .schedules import get_schedule
from .soap import SOAP

__all__ = ["Companion", "Engine", "Progress", "TrainingData", "TrainingInterrupted"]

_CHECKPOINT_SECONDS = 60.0


class TrainingInterrupted(AmpsureError):
    """Ctrl-C: the state is saved, and the message says how to go on."""


@dataclass(frozen=True)
class TrainingData:
    """Standardised features (N, F) and targets (N,) for training and validation, on the device, in its precision."""

    x_train: Tensor
    y_train: Tensor
    x_validation: Tensor
    y_validation: Tensor


@dataclass(frozen=True)
class Progress:
    """What a training tells of itself after every epoch; losses are means over members."""

    epoch: int
    epochs: int
    training_loss: float
    validation_loss: float
    learning_rate: float
    events_per_second: float
    seconds_left: float


Report = Callable[[Progress], None]


class Companion(Protocol):
    """Something trained along with the posterior, on the mean of its members."""

    def parameters(self) -> Iterator[nn.Parameter]: ...

    def loss(self, x: Tensor, residual: Tensor) -> Tensor:
        """Loss (scalar) of a batch: features (B, F), residuals y - mean (B,)."""
        ...


class Engine:
    """Trains a posterior by minimising the likelihood's loss and the posterior's penalty, summed over members.

    Every random number comes from the seed and the position in the training, or from a generator whose state is saved:
    a resumed training ends with the same weights, to the bit, on the CPU.

    Args:
        checkpoint: file to save the state to, every minute and on Ctrl-C, and to resume from if it is there.
        fingerprint: of data and configuration; a checkpoint of another training is refused.
        companion: trained jointly.
    """

    def __init__(
        self,
        posterior: Posterior,
        likelihood: Likelihood,
        data: TrainingData,
        config: TrainingConfig,
        *,
        checkpoint: Path | None = None,
        fingerprint: str = "",
        companion: Companion | None = None,
        report: Report | None = None,
    ) -> None:
        self.posterior, self.likelihood, self.data, self.config = posterior, likelihood, data, config
        self._checkpoint, self._fingerprint = checkpoint, fingerprint
        self._companion, self._report = companion, report or (lambda _: None)
        self._n = len(data.y_train)
        self._batch = min(config.batch_size, self._n)
        self._per_epoch = self._n // self._batch
        self._total = config.epochs * self._per_epoch
        self._schedule = get_schedule(config.schedule)
        parameters = [*posterior.parameters(), *(companion.parameters() if companion else ())]
        self._optimizer = _optimizer(parameters, config)
        self._parameters = list(posterior.parameters())
        self._noise = torch.Generator(device=data.x_train.device).manual_seed(_derived_seed(config.seed, 2))
        posterior.generator = self._noise
        members = posterior.network.members
        self.step = 0
        self.history: list[dict[str, float]] = []
        self._sum = torch.zeros(members, dtype=torch.float64, device=data.x_train.device)
        self._first_bad = torch.full((), self._total, device=data.x_train.device)
        self._best = {name: p.detach().clone() for name, p in posterior.named_parameters()}
        self._best_loss = torch.full((members,), float("inf"), dtype=torch.float64, device=data.x_train.device)
        self._best_epoch = 0
        self._best_companion = [p.detach().clone() for p in companion.parameters()] if companion else []
        self._saved_at = time.monotonic()
        self._last_checkpoint = "none"

    def run(self) -> None:
        """Train to the end, or from a checkpoint to the end; the posterior then has every member's best weights."""
        if self._checkpoint is not None and self._checkpoint.exists():
            self._resume(self._checkpoint)
        with _interrupt_flag() as interrupted:
            while self.step < self._total:
                epoch, start = divmod(self.step, self._per_epoch)
                clock = time.monotonic()
                order = self._order(epoch)
                for k in range(start, self._per_epoch):
                    self._train_step(order[..., k * self._batch : (k + 1) * self._batch])
                    if interrupted.is_set() and k + 1 < self._per_epoch:
                        self._stop()
                seconds = max(time.monotonic() - clock, 1e-9)
                self._end_epoch(epoch, (self._per_epoch - start) * self._batch / seconds)
                if self._patience_is_over(epoch):
                    break
                if interrupted.is_set() and self.step < self._total:
                    self._stop()
                if self._checkpoint is not None and time.monotonic() - self._saved_at > _CHECKPOINT_SECONDS:
                    self._save()
        if self._checkpoint is not None:
            self._save()  # so that a later stage does not repeat this one
        copy_into(self.posterior, self._best)
        self._load_companion(self._best_companion)

    def _order(self, epoch: int) -> Tensor:
        """Indices of all events in the order of this epoch: (N,), or (E, N) if members have orders of their own."""
        rng = np.random.default_rng([self.config.seed, 1, epoch])
        if self.config.shared_batches:
            order = rng.permutation(self._n)
        else:
            order = np.stack([rng.permutation(self._n) for _ in range(self.posterior.network.members)])
        return torch.from_numpy(order).to(self.data.x_train.device)

    def _train_step(self, index: Tensor) -> None:
        x, y = self.data.x_train[index], self.data.y_train[index]
        rate = self.config.learning_rate * self._schedule(self.step, self._total)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        out = self.posterior(x, self.likelihood.detached)
        loss = self.likelihood.loss(out, y).mean(1)  # (E,)
        total = (loss + self.posterior.penalty(self.likelihood.mean(out), self._n)).sum()
        if self._companion is not None:
            total = total + self._companion.loss(x, y - self.likelihood.prediction(out.detach()).mean(0))
        self._optimizer.zero_grad(set_to_none=True)
        total.backward()
        if self.config.gradient_clip is not None:
            _clip_members(self._parameters, self.config.gradient_clip)
            if self._companion is not None:
                _clip_members(list(self._companion.parameters()), self.config.gradient_clip)
        self._optimizer.step()
        self._sum += loss.detach()
        bad = ~torch.isfinite(total.detach())  # looked at once an epoch: asking now would wait for the device
        self._first_bad = torch.where(bad, self._first_bad.clamp_max(self.step), self._first_bad)
        self.step += 1

    @torch.no_grad()
    def _validation_loss(self) -> Tensor:
        """Mean loss of every member on the validation events, (E,)."""
        data, size = self.data, max(self._batch, 8192)
        total = torch.zeros_like(self._sum)
        for start in range(0, len(data.y_validation), size):
            out = self.posterior.network(data.x_validation[start : start + size])
            total += self.likelihood.validation_loss(out, data.y_validation[start : start + size]).double().sum(1)
        return total / max(len(data.y_validation), 1)

    def _end_epoch(self, epoch: int, rate: float) -> None:
        if int(self._first_bad) < self._total:
            self._diverged(int(self._first_bad))
        training, validation = self._sum / self._per_epoch, self._validation_loss()
        self._sum = torch.zeros_like(self._sum)
        if not bool(torch.isfinite(validation).all()):
            self._diverged(self.step - 1)
        better = validation < self._best_loss
        if self._companion is not None:  # it belongs to all members of one epoch: keep these together
            better = (validation.mean() < self._best_loss.mean()).expand_as(validation)
            if bool(better.any()):
                self._best_companion = [p.detach().clone() for p in self._companion.parameters()]
        for name, parameter in self.posterior.named_parameters():
            chosen = better.view(-1, *([1] * (parameter.ndim - 1)))
            torch.where(chosen, parameter.detach(), self._best[name], out=self._best[name])
        self._best_loss = torch.where(better, validation, self._best_loss)
        self._best_epoch = epoch if bool(better.any()) else self._best_epoch
        entry = {
            "epoch": epoch + 1,
            "training_loss": float(training.mean()),
            "validation_loss": float(validation.mean()),
            "learning_rate": self.config.learning_rate * self._schedule(self.step - 1, self._total),
        }
        self.history.append(entry)
        self._report(
            Progress(
                epoch=epoch + 1,
                epochs=self.config.epochs,
                training_loss=entry["training_loss"],
                validation_loss=entry["validation_loss"],
                learning_rate=entry["learning_rate"],
                events_per_second=rate,
                seconds_left=(self._total - self.step) * self._batch / rate,
            )
        )

    def _patience_is_over(self, epoch: int) -> bool:
        patience = self.config.early_stopping
        return patience is not None and epoch - self._best_epoch >= patience

    def _diverged(self, step: int) -> None:
        rate = self.config.learning_rate * self._schedule(step, self._total)
        raise AmpsureError(
            f"The loss is not finite at step {step} (learning rate {rate:.3g}); last good checkpoint: "
            f"{self._last_checkpoint}. Lower training.learning_rate or set training.gradient_clip."
        )

    def _stop(self) -> None:
        if int(self._first_bad) < self._total:
            self._diverged(int(self._first_bad))
        if self._checkpoint is None:
            raise TrainingInterrupted(f"Interrupted at step {self.step} of {self._total}; nothing was saved.")
        self._save()
        raise TrainingInterrupted(
            f"Interrupted at step {self.step} of {self._total}; the state is in {self._checkpoint}. "
            "Run the same command again to go on from there."
        )

    def _state(self) -> dict[str, Any]:
        return {
            "fingerprint": self._fingerprint,
            "step": self.step,
            "history": self.history,
            "parameters": dict(self.posterior.named_parameters()),
            "companion": [] if self._companion is None else list(self._companion.parameters()),
            "optimizer": self._optimizer.state_dict(),
            "noise": self._noise.get_state(),
            "sum": self._sum,
            "first_bad": self._first_bad,
            "best": self._best,
            "best_loss": self._best_loss,
            "best_epoch": self._best_epoch,
            "best_companion": self._best_companion,
        }

    @torch.no_grad()
    def _load_companion(self, values: list[Tensor]) -> None:
        if self._companion is not None:
            for parameter, value in zip(self._companion.parameters(), values, strict=True):
                parameter.copy_(value)

    def _save(self) -> None:
        assert self._checkpoint is not None
        write_checkpoint(self._checkpoint, self._state())
        self._saved_at, self._last_checkpoint = time.monotonic(), f"{self._checkpoint} (step {self.step})"

    def _resume(self, path: Path) -> None:
        state = read_checkpoint(path)
        if state["fingerprint"] != self._fingerprint:
            raise AmpsureError(f"{path} belongs to a training with other data or settings: remove it to start again.")
        device = self._sum.device
        self.step, self.history, self._best_epoch = state["step"], state["history"], state["best_epoch"]
        copy_into(self.posterior, state["parameters"])
        self._load_companion(state["companion"])
        self._best_companion = [value.to(device) for value in state["best_companion"]]
        self._optimizer.load_state_dict(state["optimizer"])
        self._noise.set_state(state["noise"])
        self._best = {name: value.to(device) for name, value in state["best"].items()}
        self._sum, self._first_bad, self._best_loss = (state[k].to(device) for k in ("sum", "first_bad", "best_loss"))
        self._last_checkpoint = f"{path} (step {self.step})"


def _optimizer(parameters: list[nn.Parameter], config: TrainingConfig) -> torch.optim.Optimizer:
    kinds: dict[str, Callable[..., torch.optim.Optimizer]]
    kinds = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "soap": SOAP}
    return kinds[config.optimizer](parameters, lr=config.learning_rate, weight_decay=config.weight_decay)


def _clip_members(parameters: list[nn.Parameter], limit: float) -> None:
    """Scale every member's gradient to at most this norm, without regard to the others."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    norm = torch.stack([g.square().flatten(1).sum(1) for g in gradients]).sum(0).sqrt()  # (E,)
    factor = (limit / norm.clamp_min(1e-30)).clamp_max(1.0)
    for gradient in gradients:
        gradient.mul_(factor.view(-1, *([1] * (gradient.ndim - 1))))


def _derived_seed(seed: int, stream: int) -> int:
    return int(np.random.SeedSequence([seed, stream]).generate_state(1, np.uint64)[0] >> np.uint64(1))


@contextmanager
def _interrupt_flag() -> Iterator[threading.Event]:
    """Ctrl-C sets the flag instead of interrupting a step; a second one interrupts at once."""
    flag = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield flag
        return
    before = signal.getsignal(signal.SIGINT)

    def handle(number: int, frame: FrameType | None) -> None:
        if flag.is_set():
            raise KeyboardInterrupt
        flag.set()

    signal.signal(signal.SIGINT, handle)
    try:
        yield flag
    finally:
        signal.signal(signal.SIGINT, before)
