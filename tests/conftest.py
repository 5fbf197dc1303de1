"""Shared data: a small sample of real events."""

from __future__ import annotations

import pytest

import ampsure


@pytest.fixture(scope="session")
def flat_events() -> ampsure.Events:
    """3000 weighted events of the benchmark, flat in phase space."""
    return ampsure.generate("gg_yyg", 3000, seed=3, sampling="rambo")


@pytest.fixture(scope="session")
def events() -> ampsure.Events:
    """2000 unweighted events of the benchmark."""
    return ampsure.generate("gg_yyg", 2000, seed=3)
