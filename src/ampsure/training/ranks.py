"""Processes that train one ensemble together, each some of its members."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ampsure.errors import AmpsureError

__all__ = ["Ranks", "Share", "close_ranks", "find_ranks", "first_to_fail", "processes"]


class Ranks:
    """The processes of a training: this one alone, or `size` of them, which `torch.distributed` has to know.

    Every process calls the same methods in the same order. The results are equal to the bit, so that all of them
    take the same decisions.
    """

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank, self.size = rank, size
        self._control = dist.new_group(backend="gloo") if size > 1 else None  # nccl cannot send what is on the CPU

    @property
    def leads(self) -> bool:
        """Whether this process writes files and tells of progress."""
        return self.rank == 0

    def share(self, members: int, groups: int = 1) -> Share:
        return Share(self, members, groups)

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on any process."""
        if self.size == 1:
            return flag
        return bool(self.gather(torch.tensor([flag])).any())

    def agreed(self, values: Tensor) -> Tensor:
        """What the first process has, on all of them."""
        if self.size == 1:
            return values
        values = values.detach().contiguous().clone()
        with _together():
            dist.broadcast(values, 0, group=self._group(values))
        return values

    def gather(self, values: Tensor) -> Tensor:
        """(n, ...) of every process, of equal shape, one after the other: (size n, ...)."""
        if self.size == 1:
            return values
        result = values.new_empty(self.size * len(values), *values.shape[1:])
        with _together():
            dist.all_gather([*result.split(len(values))], values.detach().contiguous(), group=self._group(values))
        return result

    def _group(self, values: Tensor) -> dist.ProcessGroup | None:
        return self._control if values.device.type == "cpu" else None


class Share:
    """The members that a process trains, in tensors (G E, ...) of G trainings with E members each.

    With fewer members than processes, all of them train the same, and what the first one finds counts.

    >>> Ranks().share(5).members
    range(0, 5)
    """

    def __init__(self, ranks: Ranks, members: int, groups: int) -> None:
        each, rest = divmod(members, ranks.size)
        self._ranks, self._groups, self._divided = ranks, groups, ranks.size > 1 and each > 0
        self._counts = [each + (rank < rest) for rank in range(ranks.size)]
        first = sum(self._counts[: ranks.rank])
        self.members = range(first, first + self._counts[ranks.rank]) if self._divided else range(members)

    def pick(self, values: Tensor) -> Tensor:
        """The own members of all: (G E, ...) -> (G own, ...); a number is for all of them."""
        if not self._divided or not values.ndim:
            return values
        trainings: Tensor = values.unflatten(0, (self._groups, -1))
        return trainings[:, self.members.start : self.members.stop].flatten(0, 1)

    def gather(self, own: Tensor) -> Tensor:
        """All members, without gradients: (G own, ...) -> (G E, ...); a number is for all of them."""
        if not self._divided or not own.ndim:
            return self._ranks.agreed(own)
        longest = self._counts[0]
        filled = own.new_zeros(longest, self._groups, *own.shape[1:])  # the last processes may have a member less
        filled[: len(self.members)] = own.detach().unflatten(0, (self._groups, -1)).transpose(0, 1)
        parts = self._ranks.gather(filled).split(longest)
        return torch.cat([part[:n] for part, n in zip(parts, self._counts, strict=True)]).transpose(0, 1).flatten(0, 1)


def processes() -> int:
    """How many processes were started together, by `torchrun` or whatever else sets its variables."""
    try:
        size = int(os.environ.get("WORLD_SIZE") or 1)
        if size < 1 or (size > 1 and not (os.environ["MASTER_ADDR"] and 0 <= int(os.environ["RANK"]) < size)):
            raise ValueError
        if size > 1:
            int(os.environ["MASTER_PORT"])
    except (KeyError, ValueError) as error:
        raise AmpsureError(
            "The variables WORLD_SIZE, RANK, MASTER_ADDR and MASTER_PORT do not say how processes find each other:"
            " start them with torchrun, or unset WORLD_SIZE."
        ) from error
    return size


def find_ranks(device: torch.device) -> Ranks:
    """The processes that were started with this one to train on devices of this kind; they find each other here."""
    if not (dist.is_available() and dist.is_initialized()):
        if processes() == 1:
            return Ranks()
        _initialise(device)
    return _ranks(dist.group.WORLD)


def close_ranks() -> None:
    """Leave the other processes, after a training without errors."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def first_to_fail() -> bool:
    """Whether no other process has asked before: an error that all of them meet is told once."""
    try:
        return processes() == 1 or int(_store().add("ampsure/failed", 1)) == 1
    except (RuntimeError, ValueError):  # there is no process that keeps the count, or not any more: twice, not never
        return True


@cache
def _ranks(group: dist.ProcessGroup) -> Ranks:
    return Ranks(dist.get_rank(group), dist.get_world_size(group))


@cache
def _store() -> Any:
    """Where the processes leave notes for each other; `torchrun` keeps it."""
    from torch.distributed.rendezvous import rendezvous  # not in every build of torch

    store, _, _ = next(rendezvous("env://"))
    return store


def _initialise(device: torch.device) -> None:
    rank = int(os.environ["RANK"])
    own = None
    if device.type == "cuda":
        local, here = int(os.environ.get("LOCAL_RANK", rank)), torch.cuda.device_count()
        if device.index is not None:
            raise AmpsureError(f"training.device = '{device}' is one GPU for {processes()} processes: give 'cuda'.")
        if local >= here:
            raise AmpsureError(f"Process {local + 1} on this machine finds no GPU of its own: start {here} at most.")
        own = torch.device("cuda", local)
        torch.cuda.set_device(own)
    with _together():
        backend = "gloo" if own is None else "nccl"
        dist.init_process_group(backend, store=_store(), rank=rank, world_size=processes(), device_id=own)


@contextmanager
def _together() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # all that gloo raises; the errors of nccl are of this class, too
        raise AmpsureError(
            "The other processes of this training cannot be reached: one of them has ended; it, or torchrun, says why."
        ) from error
