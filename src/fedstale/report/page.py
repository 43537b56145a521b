"""The page: setting, comparison, figures, claims, in one self-contained HTML file without scripts."""

from __future__ import annotations

from pathlib import Path

from ..store import Store
from . import figures, recipe, single, tables
from .markup import Markup, count, tag, text
from .study import Study, exact, studies
from .subject import Subject

STYLE = Path(__file__).with_name("style.css")


def page(store: Store, subject: Subject) -> str:
    """Make the report of a subject."""
    if subject.kind == "run":
        seeds = [subject.infos[0].config["seed"]] if isinstance(subject.infos[0].config.get("seed"), int) else []
        parts = _run(store, subject)
        contents: list[tuple[str, str]] = []
    else:
        made, others = studies(store, subject.infos)
        seeds = sorted({seed for study in made for seed in study.seeds})
        parts = [_study(study, subject, place) for place, study in enumerate(made)]
        contents = [(f"study-{place}", study.task) for place, study in enumerate(made)]
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
    links = [tag("li", tag("a", name, href=f"#{place}")) for place, name in contents]
    nav = tag("nav", tag("ul", links), aria_label="contents") if len(links) > 1 else None
    body = tag("main", top, tables.facts(subject, store, seeds), nav, parts)
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
        tag("style", Markup(STYLE.read_text(encoding="utf-8"))),
    )
    return "<!doctype html>\n" + tag("html", head, tag("body", body), lang="en") + "\n"


def _study(study: Study, subject: Subject, place: int) -> Markup:
    runs = [one for one, _ in study.found]
    records = [one.record() for one in runs]
    changed = recipe.changed(runs[0])
    common = {name: value for name, value in changed.items() if all(r[name] == value for r in records)}
    maps = figures.heat_maps(study) if study.accurate else []
    claims = tables.the_claims(study)
    name = subject.name if subject.kind == "sweep" else study.task
    told = f"{count(len(runs), 'run')}: {count(len(study.places), 'setting')}, {count(len(study.methods), 'method')}, "
    told += f"{count(len(study.seeds), 'seed')}. "
    told += "Settings that are not listed have their defaults: fedstale run --help."
    return tag(
        "section",
        tag("h2", study.task, id=f"study-{place}"),
        tag("p", told),
        tables.setting(common, "What all runs have in common"),
        _recipe(name, study),
        text(tag("h3", "Which β was best"), maps) if maps else None,
        tag("h3", "Comparison"),
        tables.comparison(study),
        tag("h3", "Curves"),
        tag("p", "Mean over seeds, the band is ± one standard error. ", tables.heading(study)),
        figures.curves(study),
        text(tag("h3", "The paper's claims"), claims) if claims is not None else None,
    )


def _recipe(name: str, study: Study) -> Markup:
    runs = [one for one, _ in study.found]
    if len(runs) == 1:
        return _command("Run it again", recipe.command(runs[0]))
    told = "Run it again: put this into grid.toml, then fedstale sweep grid.toml"
    return _command(told, recipe.grid(name, runs))


def _command(summary: str, content: str) -> Markup:
    return tag("details", tag("summary", summary), tag("pre", tag("code", content), tabindex="0"))


def _run(store: Store, subject: Subject) -> list[Markup]:
    info = subject.infos[0]
    one = exact(info)
    known = info.config if one is None else recipe.changed(one)
    charts = single.figures(store.run(info.id), info)
    caption = "The config" if one is None else "Settings that are not at their defaults"
    return [
        tag("p", info.reason, class_="message") if info.reason != info.status else text(),
        tag(
            "section",
            tag("h2", "Setting"),
            tables.setting(known, caption) or tag("p", "Every setting has its default."),
            _command("Run it again", recipe.command(one)) if one is not None else None,
        ),
        tag(
            "section",
            tag("h2", "Figures"),
            tag("div", charts, class_="charts") if charts else tag("p", "The run recorded no metric."),
        ),
        tag("section", tag("h2", "Numbers"), single.last_numbers(info)),
    ]
