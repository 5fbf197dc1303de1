"""The training loop: any likelihood, any posterior, one training or many at once, resumable at every step."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, cast

import torch
from torch import Tensor

from ampsure.config import TrainingConfig
from ampsure.errors import AmpsureError
from ampsure.likelihoods import Likelihood
from ampsure.posteriors import Posterior, inverse_variance_mean
from ampsure.scratch import Column, Stored

from .adam import Adam
from .batches import derived_seed, shuffled
from .checkpoint import each_tensor, read_checkpoint, resuming, write_checkpoint
from .fleet import SideBySide, part
from .graphs import Replay
from .ranks import Ranks, Share
from .schedules import get_schedule
from .sigma import SigmaCompanion
from .soap import SOAP
from .windows import Windows

__all__ = ["Engine", "Progress", "Training", "TrainingData", "TrainingInterrupted", "enough_memory"]

_CHECKPOINT_SECONDS = 60.0
_GRAPH_STEPS = (64, 16, 4, 1)  # in one CUDA graph: the first hides its launch, the others fill what is left of an epoch
_AGREE_STEPS = 64  # after which processes ask each other whether to stop
_NEVER = 2**62


class TrainingInterrupted(AmpsureError):
    """Ctrl-C: the state is saved, and the message says how to go on."""


@dataclass(frozen=True)
class TrainingData:
    """Standardised features (N, F) and targets (N,) for training and validation, on the device, in its precision.

    Those for training may be stored in files: see `Windows`.
    """

    x_train: Column
    y_train: Column
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


@dataclass(frozen=True)
class Training:
    """What is trained, on what, and how.

    Args:
        companion: trained jointly.
        report: called after every epoch.
    """

    posterior: Posterior
    likelihood: Likelihood
    data: TrainingData
    config: TrainingConfig
    companion: SigmaCompanion | None = None
    report: Report | None = None

    @property
    def batch(self) -> int:
        return min(self.config.batch_size, len(self.data.y_train))

    def kind(self) -> tuple[Any, ...]:
        """Equal for trainings that can run side by side."""
        posterior, network = self.posterior, self.posterior.network
        shapes = tuple(p.shape for module in (posterior, self.companion) if module for p in module.parameters())
        terms = type(posterior), posterior.terms(), type(self.likelihood), str(vars(self.likelihood))
        settings = self.config.model_dump_json(exclude={"seed"})
        return *terms, network.activation, network.residual, shapes, self.batch, settings


@dataclass(eq=False)
class _Course:
    """How far a training is; `order` and `rates` are those of its present window."""

    training: Training
    windows: Windows
    members: range  # those trained here
    batch: int
    per_epoch: int
    total: int
    end: int  # total, unless it stops early
    noise: torch.Generator
    history: list[dict[str, float]] = field(default_factory=list)
    best_epoch: int = 0
    place: tuple[int, int] = (-1, 0)  # epoch and window of `order` and `rates`
    order: Tensor = field(default_factory=lambda: torch.empty(0))  # (S, 1, B), or (S, E, B) if members have their own
    rates: Tensor = field(default_factory=lambda: torch.empty(0))  # (S,)
    started: tuple[int, float] = (0, 0.0)  # step and time

    def rate(self, step: int) -> float:
        return self.training.config.learning_rate * get_schedule(self.training.config.schedule)(step, self.total)

    @property
    def per_window(self) -> int:
        return self.windows.size // self.batch

    def left(self, step: int) -> int:
        """Steps to the end of the window, or of the epoch."""
        done = step % self.per_epoch
        return min(self.per_window - done % self.per_window, self.per_epoch - done)

    def batches(self, step: int, n: int) -> tuple[Tensor, Tensor]:
        """Events (n, 1 or E, B) and learning rates (n,) of the next n steps; at rest after the end."""
        epoch, done = divmod(min(step, self.end - 1), self.per_epoch)
        window, start = divmod(done, self.per_window)
        if (epoch, window) != self.place:
            self._begin(epoch, window, step)
        if step >= self.end:
            return self.order[:1].expand(n, *self.order.shape[1:]), torch.zeros_like(self.rates[:1]).expand(n)
        return self.order[start : start + n], self.rates[start : start + n]

    def _begin(self, epoch: int, window: int, step: int) -> None:
        config, x, rows = self.training.config, self.windows.x, self.windows.rows(window)
        self.windows.load(epoch, window)
        streams: list[tuple[int, ...]] = [()] if config.shared_batches else [(member,) for member in self.members]
        which = (window,) if window else ()
        orders = [shuffled(rows, config.seed, 1, epoch, *stream, *which, device=x.device) for stream in streams]
        steps = rows // self.batch
        self.order = torch.stack([o[: steps * self.batch].view(steps, self.batch) for o in orders], dim=1)
        shares = _shares(config.schedule, epoch * self.per_epoch + window * self.per_window, steps, self.total)
        self.rates = torch.tensor(shares, dtype=x.dtype).mul_(config.learning_rate).to(x.device)
        if epoch != self.place[0]:
            self.started = (step, time.monotonic())
        self.place = epoch, window


@lru_cache(maxsize=8)
def _shares(schedule: str, start: int, n: int, total: int) -> list[float]:
    return [get_schedule(schedule)(step, total) for step in range(start, start + n)]


class Engine:
    """Minimises the likelihood's loss and the posterior's penalty, summed over members, of one or more trainings.

    Trainings that differ in data, seed or strength of the repulsion, but not in the shape of what they do, run as one
    stack of members: every one has its own events, batches, learning rates, noise, validation and best weights, and
    ends as it would alone. One that is finished rests while the others go on.

    Every random number comes from the seed and the position in the training, or from a generator whose state is saved:
    a resumed training ends with the same weights, to the bit, on the CPU. On CUDA the steps are graphs, recorded once
    and replayed; the host waits for the device only at the end of an epoch.

    Several processes (ranks) share the members, and end with those of all. What couples members, repulsion and a joint
    sigma, needs the predictions of the others at every step; validation losses are exchanged once an epoch.

    Args:
        checkpoint: file to save the state to, every minute, on Ctrl-C and SIGTERM, and to resume from if it is there.
        fingerprint: of data and configuration; a checkpoint of another training is refused.
        ranks: the processes; the file does not depend on their number.
    """

    def __init__(
        self,
        *trainings: Training,
        checkpoint: Path | None = None,
        fingerprint: str = "",
        ranks: Ranks | None = None,
    ) -> None:
        first, data = trainings[0], [training.data for training in trainings]
        self.trainings, self.likelihood, self.config = trainings, first.likelihood, first.config
        self._checkpoint, self._fingerprint, self._ranks = checkpoint, fingerprint, ranks or Ranks()
        if len({training.kind() for training in trainings}) > 1:
            raise AmpsureError("Trainings run together only with the same batch size, posterior, network and settings.")
        if len(trainings) > 1 and any(isinstance(d.x_train, Stored) for d in data):
            raise AmpsureError("Trainings run together only on events in memory: run those on stored events alone.")
        self._batch = first.batch
        device = data[0].x_train.device
        groups, everyone = len(trainings), first.posterior.network.members  # G, E
        self._share = self._ranks.share(everyone, groups)
        self._courses = []
        for training in trainings:
            per_epoch = len(training.data.y_train) // self._batch
            total = per_epoch * training.config.epochs
            generator = torch.Generator(device=device).manual_seed(derived_seed(training.config.seed, 2))
            d, c = training.data, training.config
            visited = Windows(d.x_train, d.y_train, self._batch, c.epochs, c.seed)
            self._courses.append(
                _Course(training, visited, self._share.members, self._batch, per_epoch, total, total, generator)
            )
        self._members = len(self._share.members)
        posteriors = [training.posterior for training in trainings]
        own = posteriors if self._members == everyone else [part(p, self._share.members) for p in posteriors]
        self._stacks, self._shares = [SideBySide(own)], [self._share]
        self._modules: list[list[Any]] = [posteriors]
        self._posterior = cast(Posterior, self._stacks[0].joined)
        noise = [course.noise for course in self._courses]
        self._posterior.generators = [*noise]
        companions = [t.companion for t in trainings if t.companion is not None]
        self._companion = None
        if companions:
            self._stacks.append(SideBySide(companions))
            self._shares.append(self._ranks.share(1, groups))
            self._modules.append(companions)
            self._companion = cast(SigmaCompanion, self._stacks[1].joined)
        self._optimizers = [_optimizer(stack, self.config, groups == 1) for stack in self._stacks]

        windows = [course.windows for course in self._courses]
        self._x, self._y = _joined([w.x for w in windows]), _joined([w.y for w in windows])  # (sum N, ...)
        sizes = [len(d.y_train) for d in data]
        self._n = torch.tensor(sizes, dtype=self._x.dtype, device=device)  # (G,)
        self._decay = self._posterior.decay(self._n)  # (G E,)
        self._offsets = torch.tensor([0, *sizes[:-1]], device=device).cumsum(0)  # (G,)
        self._validation = _Validation.of(data)

        # What the steps of a chunk read and write; all else they change in place.
        talks = self._ranks.size > 1 and (self._posterior.is_repulsive or self._companion is not None)
        graphs = device.type == "cuda" and self.config.graphs and not talks
        self._lengths = _GRAPH_STEPS if graphs else (1,)
        longest = self._lengths[0]
        shape = (longest, groups, 1 if self.config.shared_batches else self._members, self._batch)
        self._index = torch.zeros(shape, dtype=torch.int64, device=device)  # (steps, G, 1 or E, B)
        self._rates = self._x.new_zeros(longest, groups)  # (steps, G)
        self._losses = self._x.new_zeros(longest, groups, self._members)  # (steps, G, E)
        self._others = self._x.new_zeros(longest, groups)  # (steps, G), penalties and companions
        self._ones = [self._x.new_ones(groups * self._members), self._x.new_ones(groups)]
        self._shares_of_batch = self._x.new_full((groups * self._members, self._batch), 1 / self._batch)
        self._counts = torch.arange(longest, device=device)[:, None]
        self._train = Replay(self._train_steps, generators=noise, enabled=graphs)
        self._refresh = Replay(self._refresh_optimizers, enabled=graphs)

        self.step = 0
        self._clock = torch.zeros((), dtype=torch.int64, device=device)  # the step, as the device knows it
        self._sum = torch.zeros(groups, self._members, dtype=torch.float64, device=device)
        self._first_bad = torch.full((groups,), _NEVER, device=device)
        self._best_loss = torch.full((groups, everyone), float("inf"), dtype=torch.float64, device=device)
        self._saved_at = time.monotonic()
        self._last_checkpoint = "none"

    @property
    def histories(self) -> list[list[dict[str, float]]]:
        """Losses of every epoch, for every training."""
        return [course.history for course in self._courses]

    def run(self) -> None:
        """Train to the end, or from a checkpoint to the end; the posteriors then have every member's best weights."""
        if self._checkpoint is not None and self._ranks.any(self._checkpoint.exists()):
            with resuming(self._checkpoint):
                self._resume(self._checkpoint)
                self._to_the_end()
        else:
            self._to_the_end()
        for stack, share, modules in zip(self._stacks, self._shares, self._modules, strict=True):
            stack.finish()
            stack.fill(modules, share.gather(stack.weights))

    def _to_the_end(self) -> None:
        try:
            # Ctrl-C, or a batch system; but torchrun sends SIGTERM when a process is lost, and the others cannot go on
            signals = [signal.SIGINT, *([signal.SIGTERM] if self._ranks.size == 1 else [])]
            with _interrupt_flag(*signals) as interrupted:
                self._run(interrupted)
        finally:
            self._train.forget()
            self._refresh.forget()
            for course in self._courses:
                course.windows.close()
        if self._checkpoint is not None:
            self._save()  # so that a later stage does not repeat this one

    def _run(self, interrupted: threading.Event) -> None:
        asked = self.step
        while self._active():
            due = self.advance()
            if due:
                self._end_epoch(due)
            if self._ranks.size == 1 or due or self.step - asked >= _AGREE_STEPS:
                asked = self.step
                if self._ranks.any(interrupted.is_set()) and self._active():
                    self._stop()
            late = time.monotonic() - self._saved_at > _CHECKPOINT_SECONDS
            if self._checkpoint is not None and due and self._ranks.any(late):
                self._save()

    def _active(self) -> list[_Course]:
        return [course for course in self._courses if self.step < course.end]

    def advance(self) -> list[_Course]:
        """The next steps, as many as fit into one chunk; the trainings which end an epoch with them.

        Nothing here waits for the device.
        """
        active = self._active()
        room = min(min(c.left(self.step) for c in active), min(o.reach() for o in self._optimizers))
        n = next(length for length in self._lengths if length <= room)
        rows, rates = zip(*(course.batches(self.step, n) for course in self._courses), strict=True)
        torch.stack(rows, dim=1, out=self._index[:n])
        torch.stack(rates, dim=1, out=self._rates[:n])
        self._train(n)
        due = [optimizer.advance(n) for optimizer in self._optimizers]
        if any(due):
            self._refresh(1)
        self.step += n
        return [course for course in active if self.step % course.per_epoch == 0]

    def _train_steps(self, n: int) -> None:
        """Steps with the events in `_index` and the rates in `_rates`; notes losses and whether they are finite."""
        index = self._index[:n] + self._offsets[:, None, None]
        x, y = (torch.index_select(v, 0, index.flatten()).unflatten(0, index.shape) for v in (self._x, self._y))
        losses = torch.stack([self._train_step(k, x[k], y[k]) for k in range(n)])  # their means in one call
        torch.mean(losses, 2, out=self._losses[:n].flatten(1))
        self._sum += self._losses[:n].sum(0, dtype=torch.float64)
        total = self._losses[:n].sum(2) + self._others[:n]
        bad = (self._clock + self._counts[:n]).masked_fill(torch.isfinite(total), _NEVER)
        torch.minimum(self._first_bad, bad.amin(0), out=self._first_bad)
        self._clock += n

    def _refresh_optimizers(self, _: int) -> None:
        for optimizer in self._optimizers:
            if isinstance(optimizer, SOAP):
                optimizer.refresh()

    def _train_step(self, k: int, x: Tensor, y: Tensor) -> Tensor:
        """Step k of a chunk: members see events (G, 1 or E, B, F), (G, 1 or E, B) and move; their losses (G E, B)."""
        out = self._posterior(self._spread(x), self.likelihood.detached)  # (G E, B, n_outputs)
        loss = self.likelihood.loss(out, self._spread(y))  # (G E, B)
        mean = self.likelihood.mean(out)
        everyone = self._share.gather(mean.detach()) if self._posterior.is_repulsive else None
        penalty = self._posterior.penalty(mean, self._n, everyone)  # (G E,)
        terms = [loss] if penalty is None else [loss, penalty]
        weights = [self._shares_of_batch, self._ones[0]][: len(terms)]
        others = [] if penalty is None else [penalty.unflatten(0, self._sum.shape).sum(1)]  # (G,) each
        if self._companion is not None:
            fixed = out.detach()
            members = torch.stack([self.likelihood.prediction(fixed), self.likelihood.variance_syst(fixed)], dim=1)
            everyone = self._share.gather(members).unflatten(0, self._best_loss.shape)  # (G, E, 2, B)
            means, _ = inverse_variance_mean(*everyone.unbind(2))
            others.append(self._companion.loss(x[:, 0], y[:, 0] - means))
            terms.append(others[-1])
            weights.append(self._ones[1])
        if others:
            self._others[k].copy_(torch.stack(others).detach().sum(0))
        parameters = [p for stack in self._stacks for p in stack.parameters]
        gradients = iter(torch.autograd.grad(terms, parameters, weights))
        for stack, optimizer in zip(self._stacks, self._optimizers, strict=True):
            gradient = stack.gather([next(gradients) for _ in stack.parameters])
            if self._decay is not None and stack is self._stacks[0]:
                gradient.addcmul_(stack.weights, self._decay[:, None])
            if self.config.gradient_clip is not None:
                norm = torch.linalg.vector_norm(gradient, dim=1, keepdim=True)  # of every member for itself
                gradient.mul_((self.config.gradient_clip / norm.clamp_min(1e-30)).clamp_max(1.0))
            rate = self._rates[k][:, None].expand(-1, len(stack.weights) // len(self.trainings)).flatten()
            optimizer.update(rate)
        return loss.detach()

    def _spread(self, values: Tensor) -> Tensor:
        """(G, 1 or E, ...) -> (G E, ...), or without that axis if it is the same for all members there are."""
        if len(self._courses) == values.shape[1] == 1:
            return values[0, 0]
        return values.expand(-1, self._members, *values.shape[2:]).flatten(0, 1)

    @torch.no_grad()
    def _validation_loss(self, due: Sequence[_Course]) -> Tensor:
        """Mean loss of every member on the validation events of its training, (G, E); infinite where it is not due."""
        groups = [i for i, c in enumerate(self._courses) if c in due]
        rows = None
        if len(groups) < len(self._courses):
            rows = torch.cat([torch.arange(g * self._members, (g + 1) * self._members) for g in groups])
            rows = rows.to(self._sum.device)
        result = torch.full_like(self._sum, float("inf"))
        total = torch.zeros_like(result[groups])
        size = max(self._batch, 8192 if self._sum.device.type == "cpu" else 2**20 // self._sum.numel())
        for x, y, weight in self._validation.chunks(groups, size):
            out = self._posterior.expected(self._spread(x[:, None]), rows)
            loss = self.likelihood.validation_loss(out, self._spread(y[:, None])).unflatten(0, total.shape)
            total += (loss * weight[:, None]).sum(-1, dtype=torch.float64)
        result[groups] = total
        return result

    def _end_epoch(self, due: Sequence[_Course]) -> None:
        validation = self._of_all(self._validation_loss(due))  # (G, E)
        better = validation < self._best_loss
        if self._companion is not None:  # it belongs to all members of one epoch: keep these together
            better = (validation.mean(1) < self._best_loss.mean(1))[:, None].expand_as(better)
        better = self._ranks.agreed(better)
        chosen_of = self._share.pick(better.flatten()), better[:, 0]
        for stack, chosen in zip(self._stacks, chosen_of, strict=False):
            torch.where(chosen[:, None], stack.weights, stack.best, out=stack.best)
        self._best_loss = torch.where(better, validation, self._best_loss)
        told = [self._bad(), self._of_all(self._sum).mean(1), validation.mean(1), better.any(1)]
        for i, (bad, training, loss, improved) in enumerate(torch.stack([t.double() for t in told], 1).tolist()):
            course = self._courses[i]
            if course not in due:
                continue
            if bad < _NEVER or not abs(loss) < float("inf"):
                self._diverged(course, int(min(bad, self.step - 1)))
            self._sum[i] = 0
            epoch = self.step // course.per_epoch
            course.best_epoch = epoch if improved else course.best_epoch
            self._tell(course, epoch, training / course.per_epoch, loss)
            patience = course.training.config.early_stopping
            if patience is not None and epoch - course.best_epoch >= patience:
                course.end = self.step

    def _of_all(self, values: Tensor) -> Tensor:
        """Numbers of the own members (G, own) -> of all members (G, E)."""
        return self._share.gather(values.flatten()).view_as(self._best_loss)

    def _bad(self) -> Tensor:
        """The first step of each training at which the loss of a member was not finite, (G,)."""
        return self._of_all(self._first_bad[:, None].expand_as(self._sum)).amin(1)

    def _tell(self, course: _Course, epoch: int, training: float, validation: float) -> None:
        rate = course.rate(self.step - 1)
        course.history.append(
            {"epoch": epoch, "training_loss": training, "validation_loss": validation, "learning_rate": rate}
        )
        if course.training.report is None:
            return
        step, clock = course.started
        events_per_second = (self.step - step) * self._batch / max(time.monotonic() - clock, 1e-9)
        course.training.report(
            Progress(
                epoch=epoch,
                epochs=course.training.config.epochs,
                training_loss=training,
                validation_loss=validation,
                learning_rate=rate,
                events_per_second=events_per_second,
                seconds_left=(course.total - self.step) * self._batch / events_per_second,
            )
        )

    def _diverged(self, course: _Course, step: int) -> NoReturn:
        raise AmpsureError(
            f"The loss is not finite at step {step} (learning rate {course.rate(step):.3g}); last good checkpoint: "
            f"{self._last_checkpoint}. Lower training.learning_rate or set training.gradient_clip."
        )

    def _stop(self) -> NoReturn:
        for course, bad in zip(self._courses, self._bad().tolist(), strict=True):
            if bad < _NEVER:
                self._diverged(course, bad)
        total = max(course.end for course in self._courses)
        if self._checkpoint is None:
            raise TrainingInterrupted(f"Interrupted at step {self.step} of {total}; nothing was saved.")
        self._save()
        raise TrainingInterrupted(
            f"Interrupted at step {self.step} of {total}; the state is in {self._checkpoint}. "
            "Run the same command again to go on from there."
        )

    def _state(self) -> dict[str, Any]:
        """Of all members, whatever process has them, on the one that leads."""

        def whole(state: Any, share: Share) -> Any:
            def kept(own: Tensor) -> Tensor:
                everyone = share.gather(own)
                return everyone.cpu() if self._ranks.leads else own

            return each_tensor(state, kept)

        stacks = list(zip(self._stacks, self._optimizers, self._shares, strict=True))
        return {
            "fingerprint": self._fingerprint,
            "step": self.step,
            "courses": [
                {"history": c.history, "best_epoch": c.best_epoch, "end": c.end, "noise": c.noise.get_state()}
                for c in self._courses
            ],
            "weights": [whole(stack.weights, share) for stack, _, share in stacks],
            "best": [whole(stack.best, share) for stack, _, share in stacks],
            "optimizers": [whole(optimizer.state_dict(), share) for _, optimizer, share in stacks],
            "sum": self._of_all(self._sum),
            "first_bad": self._bad(),
            "best_loss": self._best_loss,
        }

    def _save(self) -> None:
        assert self._checkpoint is not None
        state = self._state()
        if self._ranks.leads:
            write_checkpoint(self._checkpoint, state)
        self._saved_at, self._last_checkpoint = time.monotonic(), f"{self._checkpoint} (step {self.step})"

    def _resume(self, path: Path) -> None:
        if not path.exists():
            raise AmpsureError(f"{path} is not seen by all processes: choose a folder that their machines share.")
        state = read_checkpoint(path)
        if state["fingerprint"] != self._fingerprint:
            raise AmpsureError(
                f"{path} belongs to a training with other data or settings, or of another version: remove it to start"
                " again."
            )
        self.step = state["step"]
        for course, saved in zip(self._courses, state["courses"], strict=True):
            if not 0 <= saved["end"] <= course.total or self.step < 0:
                raise ValueError("a training that has no end, or began before its beginning")
            course.history, course.best_epoch, course.end = saved["history"], saved["best_epoch"], saved["end"]
            course.noise.set_state(saved["noise"])
        for k, (stack, optimizer, share) in enumerate(zip(self._stacks, self._optimizers, self._shares, strict=True)):
            stack.weights.copy_(share.pick(state["weights"][k]))
            stack.best.copy_(share.pick(state["best"][k]))
            optimizer.load_state_dict(each_tensor(state["optimizers"][k], share.pick))
        self._sum.copy_(self._share.pick(state["sum"].flatten()).view_as(self._sum))
        self._first_bad.copy_(state["first_bad"])
        self._best_loss.copy_(state["best_loss"])
        self._clock.fill_(self.step)
        self._last_checkpoint = f"{path} (step {self.step})"


@dataclass(frozen=True)
class _Validation:
    """Validation events of all trainings, cat after cat, and where those of each are: filled up to one length V."""

    x: Tensor  # (sum N, F)
    y: Tensor  # (sum N,)
    index: Tensor  # (G, V)
    weight: Tensor  # (G, V): 1/N, zero where filled up

    @classmethod
    def of(cls, data: Sequence[TrainingData]) -> _Validation:
        sizes = torch.tensor([len(d.y_validation) for d in data])[:, None]
        offsets, counts = sizes.cumsum(0) - sizes, torch.arange(int(sizes.max()))
        inside = counts < sizes
        x, y = _joined([d.x_validation for d in data]), _joined([d.y_validation for d in data])
        index = offsets + counts * inside
        return cls(x, y, index.to(x.device), (inside / sizes.clamp_min(1)).to(x.device))

    def chunks(self, groups: Sequence[int], size: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Features (D, size, F), targets (D, size) and weights (D, size) of D of the trainings."""
        for index, weight in zip(self.index.split(size, 1), self.weight.split(size, 1), strict=True):
            chosen = index[groups]
            yield self.x[chosen], self.y[chosen], weight[groups]


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors))


def _optimizer(stack: SideBySide, config: TrainingConfig, one_rate: bool) -> Adam | SOAP:
    if config.optimizer == "soap":
        return SOAP(stack.parameters, weight_decay=config.weight_decay)
    decoupled = config.optimizer == "adamw"
    return Adam(stack.weights, weight_decay=config.weight_decay, decoupled=decoupled, one_rate=one_rate)


@contextmanager
def enough_memory() -> Iterator[None]:
    """A GPU that is full is met with a sentence that says what to do."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise AmpsureError(
            "The GPU has not enough memory for this training: lower training.batch_size or posterior.members, or train "
            "on the CPU (training.device = 'cpu')."
        ) from error


@contextmanager
def _interrupt_flag(*signals: signal.Signals) -> Iterator[threading.Event]:
    """Signals set the flag instead of interrupting a step; a second one interrupts at once."""
    flag = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield flag
        return
    before = {number: signal.getsignal(number) for number in signals}

    def handle(number: int, frame: FrameType | None) -> None:
        if flag.is_set():
            raise KeyboardInterrupt
        flag.set()

    for number in before:
        signal.signal(number, handle)
    try:
        yield flag
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
