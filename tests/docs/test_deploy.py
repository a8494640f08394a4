"""The files under deploy/ name only what is exported, and say what they should."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from tests.docs.pages import ROOT

from penstock.service.scale import ScaleView
from penstock.telemetry.catalog import METRICS

DEPLOY = ROOT / "deploy"
DASHBOARD = json.loads((DEPLOY / "grafana" / "penstock.json").read_text())
RULES = [rule for group in yaml.safe_load((DEPLOY / "prometheus" / "alerts.yaml").read_text())["groups"]
         for rule in group["rules"]]  # fmt: skip
PAGE = (ROOT / "docs" / "telemetry.md").read_text()


def expressions() -> Iterator[tuple[str, str]]:
    for rule in RULES:
        yield rule["alert"], rule["expr"]
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]
    for text in re.findall(r"```promql\n(.*?)```", PAGE, re.DOTALL):
        yield "the page", text


def exported() -> dict[str, tuple[str, ...]]:
    """Every name of a series, with its labels."""
    names: dict[str, tuple[str, ...]] = {}
    for metric in METRICS.values():
        if metric.kind == "histogram":
            names[f"{metric.name}_bucket"] = (*metric.labels, "le")
            names[f"{metric.name}_sum"] = names[f"{metric.name}_count"] = metric.labels
        else:
            names[metric.name] = metric.labels
    return names


@pytest.mark.parametrize(("where", "expression"), list(expressions()))
def test_names_and_labels_are_exported(where: str, expression: str) -> None:
    known = exported()
    used = re.findall(r"(penstock_\w+)(?:\{([^}]*)\})?", expression)
    assert used
    for name, selector in used:
        assert name in known, f"{where}: {name}"
        for label in re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector):
            assert label in known[name], f"{where}: {name} has no label {label}"
    by = {word.strip() for group in re.findall(r"\b(?:by|on) \(([^)]*)\)", expression) for word in group.split(",")}
    labels = {label for name, _ in used for label in known[name]} | {"instance"}  # Prometheus adds that one
    assert by - {""} <= labels, where


@pytest.mark.parametrize(("where", "expression"), list(expressions()))
def test_expressions_are_closed(where: str, expression: str) -> None:
    for opening, closing in ("()", "{}", "[]"):
        assert expression.count(opening) == expression.count(closing), where
    counters = [metric.name for metric in METRICS.values() if metric.kind == "counter"]
    for name in re.findall(r"penstock_\w+", expression):
        if name in counters or name.endswith("_bucket"):
            assert re.search(rf"(rate|increase)\({name}", expression), f"{where}: {name} only ever rises"


def test_every_metric_has_a_panel() -> None:
    shown = " ".join(target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ()))
    missing = {name for name in METRICS if name not in shown}
    assert missing == {"penstock_signals_total"}


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"])
                 for y in range(place["y"], place["y"] + place["h"])}  # fmt: skip
        assert not cells & taken, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_every_alert_says_what_it_means_and_what_to_do() -> None:
    for rule in RULES:
        assert set(rule["annotations"]) == {"summary", "action"}
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert f"| `{rule['alert']}` |" in PAGE
    assert len({rule["alert"] for rule in RULES}) == len(RULES) == PAGE.count("| `Penstock")


def test_keda_asks_for_what_the_service_answers() -> None:
    for name in ("keda-scaledobject.yaml", "keda-scaledjob.yaml"):
        parts: list[dict[str, Any]] = list(yaml.safe_load_all((DEPLOY / "kubernetes" / name).read_text()))
        scaler = next(part for part in parts if part["kind"] in ("ScaledObject", "ScaledJob"))
        [trigger] = scaler["spec"]["triggers"]
        assert trigger["metadata"]["valueLocation"] in ScaleView.model_fields
        assert re.fullmatch(r"http://penstock:8080/v1/scale\?queue=\w+", trigger["metadata"]["url"])
        assert all(isinstance(value, str) for value in trigger["metadata"].values()), "KEDA takes text only"


def test_every_extra_is_listed_where_installing_is_explained() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    table = (ROOT / "docs" / "deployment.md").read_text().partition("| extra |")[2].partition("\n\n")[0]
    listed = {name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert listed == set(extras)
