"""Shared by all tests: small samples of real events, and a way to run commands."""

from __future__ import annotations

import os
import sys

import pytest
import torch
from hypothesis import Phase, settings
from rich.console import Console

import ampsure
from ampsure import cli

settings.register_profile("fixed", derandomize=True, deadline=None)  # the same examples every time, however long
settings.register_profile("explore", deadline=None)
settings.register_profile(
    "mutants", settings.get_profile("fixed"), phases=[Phase.explicit, Phase.generate]
)  # no shrinking
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))

if "PYTEST_XDIST_WORKER" in os.environ:  # workers side by side, each on one core, and so are the programs they start
    torch.set_num_threads(1)
    os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def flat_events() -> ampsure.Events:
    """3000 weighted events of the benchmark, flat in phase space."""
    return ampsure.generate("gg_yyg", 3000, seed=3, sampling="rambo")


@pytest.fixture(scope="session")
def events() -> ampsure.Events:
    """2000 unweighted events of the benchmark."""
    return ampsure.generate("gg_yyg", 2000, seed=3)


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Run `ampsure ARGUMENTS` in an empty folder; gives exit code, output, errors."""
    monkeypatch.chdir(tmp_path)
    wide = Console(width=200, force_terminal=False)
    for module in (cli.common, cli.deploy, cli.events, cli.grids, cli.reports, cli.studies, cli.surrogates, cli.use):
        monkeypatch.setattr(module, "console", wide)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["ampsure", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        output = capsys.readouterr()
        return stop.value.code or 0, output.out, " ".join(output.err.split())

    return run
