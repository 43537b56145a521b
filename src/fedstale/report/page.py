"""The page: setting, comparison, figures, claims, in one self-contained HTML file without scripts."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from ..analysis.verdicts import Claim
from ..checks import counted as count
from ..simulation.settings import Settings
from ..store import Store
from ..sweeps import settings_of
from . import figures, recipe, single, tables
from .conclusion import conclusion
from .markup import Markup, tag, text
from .study import Study, studies
from .subject import Subject

_HEAT_COLOUR = re.compile(r'class="heat c([0-9a-f]{6})')
_STYLE = Path(__file__).with_name("style.css")


Claims = Callable[[Store, str, Sequence[Settings]], Sequence[Claim]]
"""Judges claims by a store: given also a task, and the settings of its runs."""


def page(store: Store, subject: Subject, claims: Claims | None = None) -> str:
    """Make the report of a subject.

    Parameters
    ----------
    store, subject
        Where the runs are, and which of them the report is about.
    claims
        What judges claims by the runs, such as `fedstale.paper.claims.claims_of_store`; None leaves them out.
    """
    if subject.kind == "run":
        seeds = [subject.infos[0].config["seed"]] if isinstance(subject.infos[0].config.get("seed"), int) else []
        parts = _run(store, subject)
        contents: list[tuple[str, str]] = []
    else:
        made, others = studies(store, subject.infos)
        seeds = sorted({seed for study in made for seed in study.seeds})
        parts = [_study(study, subject, number, claims) for number, study in enumerate(made)]
        contents = [(f"study-{number}", study.task) for number, study in enumerate(made)]
        if others:
            parts.append(tag("section", tag("h2", "Other runs", id="others"), tables.plain_runs(others)))
            contents.append(("others", "other runs"))
        trouble = tables.troubles(subject.infos)
        if trouble is not None:
            parts.append(tag("section", tag("h2", "Not finished", id="unfinished"), trouble))
            contents.append(("unfinished", "not finished"))
        if not parts:
            parts = [tag("p", "There is no run here yet.")]
    top = tag("header", tag("p", "fedstale report", class_="kind"), tag("h1", subject.name))
    links = [tag("li", tag("a", name, href=f"#{anchor}")) for anchor, name in contents]
    nav = tag("nav", tag("ul", links), aria_label="contents") if len(links) > 1 else None
    facts = tables.facts(subject, store, seeds)
    if subject.kind == "run":
        body = tag("main", top, facts, parts)
    else:  # what was found comes first
        body = tag("main", top, nav, parts, tag("section", tag("h2", "About this report"), facts))
    return _document(f"{subject.name} – fedstale report", body)


def _document(title: str, body: Markup) -> str:
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="generator", content="fedstale report"),
        # Nothing is fetched and nothing runs, even if something got past the escaping.
        tag("meta", http_equiv="Content-Security-Policy", content="default-src 'none'; style-src 'unsafe-inline'"),
        tag("title", title),
        tag("style", Markup(_STYLE.read_text(encoding="utf-8") + _heat_colours(body))),
    )
    return "<!doctype html>\n" + tag("html", head, tag("body", body), lang="en") + "\n"


def _heat_colours(body: Markup) -> str:
    """The rules for the squares of heat maps: colours come from the palette, and a style attribute is not allowed."""
    found = sorted(set(_HEAT_COLOUR.findall(body)))
    return "".join(f"td.heat.c{colour} {{ background: #{colour}; }}\n" for colour in found)


def _study(study: Study, subject: Subject, number: int, claims: Claims | None) -> Markup:
    runs = study.runs
    common = recipe.common(runs)
    maps = figures.heat_maps(study) if study.accurate else []
    judged = claims(study.store, study.task, runs) if claims is not None else []
    name = subject.name if subject.kind == "sweep" else study.task
    extent = (
        f"{count(len(runs), 'run')}: {count(len(study.conditions), 'setting')}, {count(len(study.methods), 'method')}, "
    )
    extent += f"{count(len(study.seeds), 'seed')}."
    return tag(
        "section",
        tag("h2", study.task, id=f"study-{number}"),
        tag("p", " ".join(conclusion(study)), class_="conclusion"),
        tag("p", extent),
        tag(
            "details",
            tag("summary", f"Every setting that matters: {recipe.in_short(common)}"),
            tables.setting(common, "What all runs have in common; what varies is in the tables below"),
        ),
        _recipe(name, study),
        text(tag("h3", "Which β was best"), maps) if maps else None,
        tag("h3", "Comparison"),
        tables.comparison(study),
        tag("h3", "Curves"),
        tag("p", "Mean over seeds, the band is ± one standard error. ", tables.heading(study)),
        figures.curves(study),
        text(tag("h3", "The paper's claims"), tables.claims_table(judged)) if judged else None,
    )


def _recipe(name: str, study: Study) -> Markup:
    if len(study.runs) == 1:
        return _command("Run it again", recipe.command(study.runs[0]))
    summary = "Run it again: put this into grid.toml, then fedstale sweep grid.toml"
    return _command(summary, recipe.grid(name, study.runs))


def _command(summary: str, content: str) -> Markup:
    return tag("details", tag("summary", summary), tag("pre", tag("code", content), tabindex="0"))


def _run(store: Store, subject: Subject) -> list[Markup]:
    info = subject.infos[0]
    settings = settings_of(info)
    known = info.config if settings is None else recipe.changed(settings)
    charts = single.figures(store.run(info.id), info)
    caption = "The config" if settings is None else "Settings that are not at their defaults"
    return [
        tag("p", info.reason, class_="message") if info.reason != info.status else text(),
        tag(
            "section",
            tag("h2", "Setting"),
            tables.setting(known, caption) or tag("p", "Every setting has its default."),
            _command("Run it again", recipe.command(settings)) if settings is not None else None,
        ),
        tag(
            "section",
            tag("h2", "Figures"),
            tag("div", charts, class_="charts") if charts else tag("p", "The run recorded no metric."),
        ),
        tag("section", tag("h2", "Numbers"), single.last_numbers(info)),
    ]
