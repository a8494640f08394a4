"""Routes lead to configured backends, and nowhere else whatever an address says."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadInput
from penstock.gateway.routes import Route, Routes


def test_the_first_whole_match_wins() -> None:
    routes = Routes.read({"/a/x/(.*)": "http://one:1/$1", "/a/(.*)": "http://two:2/base", "/b": "https://three/"})
    found = routes.find("/a/x/1?q=2")
    assert found is not None
    assert found[1] == "http://one:1/1?q=2"
    found = routes.find("/a/y")
    assert found is not None
    assert found[1] == "http://two:2/base/a/y"
    assert routes.find("/b/c") is None
    assert routes.patterns == ["/a/x/(.*)", "/a/(.*)", "/b"]


@pytest.mark.parametrize(
    "resource",
    [
        {"/a(": "http://x"}, {"/a": "ftp://x/"}, {"/a": "x"}, {"/a": "http://"}, {"/a/(.*)": "http://$1/"},
        {"/a": "http://x/$1"}, {"/a/(.*)": "http://x/$0"}, {"/a": "http://user:pw@x/"}, {"/a": "http://x:port/"},
        {"/a/(.*)": "http://x$1/"}, {"/a": 5}, {"/a": {"target": "http://x", "more": 1}}, "[]", "{",
        '{"/a": "http://x", "/a": "http://y"}', {"/a": {"target": "http://x", "timeout": "0s"}},
        {"/a": {"target": "http://x", "timeout": "2h"}}, {"/a": {"target": "http://x", "timeout": "soon"}},
    ],
)  # fmt: skip
def test_routes_that_cannot_be_used(resource: object) -> None:
    with pytest.raises(BadInput):
        Routes.read(resource)  # type: ignore[arg-type]


ODD = st.sampled_from(
    ["@", "//", "\\", ":", "#", "?", "%2f", "evil", "..", "/", "[", "]", "\t", "\r\n", " ", "\0", "é", "@evil:80/"]
)


@given(st.lists(ODD, max_size=6).map("".join))
def test_no_address_leads_away(rest: str) -> None:
    routes = Routes([Route("/a/((?s:.*))", "http://crm:8080/$1"), Route("((?s:.*))", "http://erp:9090")])
    for uri in ("/a/" + rest, rest):
        try:
            found = routes.find(uri)
        except BadInput:
            continue
        if found is not None:
            parts = urlsplit(found[1])
            assert (parts.scheme, parts.hostname, parts.port) in (("http", "crm", 8080), ("http", "erp", 9090))
            assert parts.username is None


@pytest.mark.parametrize(
    "disguise",
    ["..%00", "..%01", "..%ff", "..%85", "%c0%ae%c0%ae", "%25252e%25252e", "%2525252e.", "%e0%80%ae.", ".%09.",
     "..%c0%af"],
)  # fmt: skip
def test_dots_are_found_in_every_disguise(disguise: str) -> None:
    routes = Routes.read({"/crm/(.*)": "http://crm:8080/api/$1"})
    with pytest.raises(BadInput):
        routes.find(f"/crm/{disguise}/admin")
    for fine in ("...", "a..b", "%E9t%E9", "v1.2", "..a", "%2e%2e%2e"):
        assert routes.find(f"/crm/{fine}/x") is not None


def test_a_fragment_is_not_cut_off_silently() -> None:
    with pytest.raises(BadInput, match="fragment"):
        Routes.read({"/crm/(.*)": "http://crm:8080/api/$1"}).find("/crm/a#/../../b")


def test_a_group_in_the_query_stays_one_value() -> None:
    routes = Routes.read({"/q/(.*)": "http://crm:8080/find?q=$1&role=user"})
    found = routes.find("/q/1&role=admin")
    assert found is not None
    assert found[1] == "http://crm:8080/find?q=1%26role%3Dadmin&role=user"
    plain = routes.find("/q/a%20b/c")
    assert plain is not None
    assert plain[1] == "http://crm:8080/find?q=a%20b/c&role=user"
