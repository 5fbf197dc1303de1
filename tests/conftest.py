"""Shared data: a small sample of real events."""

from __future__ import annotations

import os

import pytest
import torch

import ampsure

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)  # workers side by side, each on one core


@pytest.fixture(scope="session")
def flat_events() -> ampsure.Events:
    """3000 weighted events of the benchmark, flat in phase space."""
    return ampsure.generate("gg_yyg", 3000, seed=3, sampling="rambo")


@pytest.fixture(scope="session")
def events() -> ampsure.Events:
    """2000 unweighted events of the benchmark."""
    return ampsure.generate("gg_yyg", 2000, seed=3)
