"""Skips tests that start Spark in processes of their own where there is no Spark or no Java."""

import pytest

from penstock.errors import CannotOpen


@pytest.fixture(autouse=True)
def able() -> None:
    pytest.importorskip("pyspark", reason="pyspark is not installed here")
    from penstock.spark import check_java

    try:
        check_java()
    except CannotOpen as missing:
        pytest.skip(str(missing))
