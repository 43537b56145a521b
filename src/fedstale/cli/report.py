"""`fedstale report`: a store, a sweep or a run as one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..checks import counted
from . import complete
from .options import Json, StorePath, print_json, say


def report(
    what: Annotated[
        str | None,
        typer.Argument(metavar="[STORE|RUN|SWEEP]", show_default=False, autocompletion=complete.runs_or_sweeps),
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Output file; an existing HTML page is replaced.")] = Path(
        "report.html"
    ),
    store: StorePath = None,
    json: Json = False,
) -> None:
    """Write a report as one self-contained HTML file: settings, comparison, figures, claims.

    STORE is a folder with a store, SWEEP the name of a sweep, RUN a run's id, the beginning or end of it, or its name.
    Without any of them: the whole store of --store.
    """
    from .. import report as reports
    from ..paper.claims import claims_of_store
    from ..store import Store, StoreError

    reports.refuse(out)
    folder, name = reports.locate(what, store)
    try:
        opened = Store.open(folder, create=False, read_only=True)
    except StoreError as error:
        if name is None:
            raise
        raise StoreError(f"{name} is not a folder with a store, nor can it be a run or a sweep: {error}") from None
    with opened:
        subject = reports.find(opened, name)
        size = reports.write(reports.page(opened, subject, claims_of_store), out)
    if json:
        summary = {"file": str(out), "bytes": size, "kind": subject.kind, "name": subject.name}
        print_json({**summary, "runs": len(subject.infos)})
        return
    runs = "" if subject.kind == "run" else f", {counted(len(subject.infos), 'run')}"
    say(f"{out}: {size / 1000:,.0f} kB, {subject.kind} {subject.name}{runs}")
