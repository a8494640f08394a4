"""The table of capabilities says what the flags in the code say, and every store has its page."""

from __future__ import annotations

import pytest
from tests.docs.pages import ROOT
from tools import capabilities

from penstock.opening import LOG_STORES, QUEUE_STORES

PAGES = {
    "memory": "memory", "sqlite": "sqlite", "postgresql": "postgresql", "mysql": "mariadb", "redis": "redis",
    "zookeeper": "zookeeper", "file": "files", "kafka": "kafka",
}  # fmt: skip


def test_the_table_is_up_to_date() -> None:
    assert capabilities.page() == capabilities.PAGE.read_text(), "run: python -m tools.capabilities"


@pytest.mark.parametrize("scheme", [*capabilities.stores(QUEUE_STORES), *capabilities.stores(LOG_STORES)])
def test_a_store_has_its_page(scheme: str) -> None:
    page = PAGES[scheme]
    assert f"{scheme}://" in (ROOT / "docs" / "stores" / f"{page}.md").read_text()
    assert f"]({page}.md)" in capabilities.PAGE.read_text()
