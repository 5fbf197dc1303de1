"""What the documentation takes from the code: formulas as MathML, and the reference of all commands."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import typer
from latex2mathml.converter import convert
from typer.cli import get_docs_for_click

from ampsure.cli import app

_FORMULA = re.compile(r'<(?P<tag>span|div) class="arithmatex">\\[(\[](?P<latex>.*?)\\[)\]]</(?P=tag)>', re.DOTALL)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """`<!-- commands -->` becomes the help of all commands."""
    return markdown.replace("<!-- commands -->", commands()) if "<!-- commands -->" in markdown else markdown


def on_page_content(html: str, **_: Any) -> str:
    """Formulas become MathML, which browsers show without any script."""
    return _FORMULA.sub(_mathml, html)


def commands() -> str:
    """Markdown of the help of every command, below headings of the second level."""
    command = typer.main.get_command(app)
    context = typer.Context(command, info_name="ampsure")
    text = get_docs_for_click(obj=command, ctx=context, name="ampsure")
    return text[text.index("\n## ") :]  # the list before it has shortened sentences


def _mathml(found: re.Match[str]) -> str:
    display = "block" if found["tag"] == "div" else "inline"
    formula = convert(unescape(found["latex"]).strip(), display=display)
    return f'<div class="formula">{formula}</div>' if display == "block" else formula
