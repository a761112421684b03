"""Addresses and proxies: what is one."""

import pytest

from gpulayer.errors import UsageError
from gpulayer.net import Address, connect_request, parse_proxy, parse_url, parse_urls


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://127.0.0.1:8470/", Address("127.0.0.1", 8470)),
        ("http://localhost", Address("localhost", 80)),
        ("http://[::1]:9", Address("::1", 9)),
        (" https://Box.Example ", Address("box.example", 443, True)),
        ("https://box.example:8470/team/a/", Address("box.example", 8470, True, "/team/a")),
        ("https://[2001:db8::1]:8470", Address("2001:db8::1", 8470, True)),
        ("https://[fe80::1%eth0]:8470", Address("fe80::1%eth0", 8470, True)),
        ("https://[fe80::1%25eth0]:8470", Address("fe80::1%eth0", 8470, True)),
        ("https://[fe80::1%2]:8470", Address("fe80::1%2", 8470, True)),
    ],
)
def test_a_url_is_taken_apart_and_put_together_again(url, expected):
    assert parse_url(url) == expected
    assert parse_url(str(expected)) == expected


@pytest.mark.parametrize(
    "url",
    [
        "", "box:8470", "ftp://box", "https://", "https://box:x", "https://box:99999", "https://u:p@box", "https://u@box",
        "https://box/?q=1", "https://box/#f", "https://[::1", "http://box.example", "http://0.0.0.0:1", "http://127.0.0.2",
    ],
)  # fmt: skip
def test_what_is_no_address_or_would_show_a_token_is_refused(url):
    with pytest.raises(UsageError) as caught:
        parse_url(url)
    assert caught.value.hint


def test_several_urls_come_with_commas_or_spaces_between_and_each_once():
    text = "https://a:1, https://b:2 https://a:1/"
    assert parse_urls(text) == (Address("a", 1, True), Address("b", 2, True))
    with pytest.raises(UsageError, match="no control plane's address was given"):
        parse_urls(" , ")


def test_a_proxy_is_a_host_and_a_port_over_http():
    assert parse_proxy("") is None
    assert parse_proxy("http://proxy.example:3128/") == Address("proxy.example", 3128)
    no_port, no_scheme, other = "http://p", "proxy.example:3128", ("https://p:1", "socks5://p:1")
    for text in (no_port, no_scheme, *other, "http://p:1/x", "http://p:x"):
        with pytest.raises(UsageError, match="is not a proxy's address"):
            parse_proxy(text)


@pytest.mark.parametrize(
    "url",
    [
        "https://user:hunter2@box:8470",
        "https://user:hun/ter2hunter2@box",
        "https://user:hunter2,hunter2 hunter2@box",
        "https://user:hunter2#@box",
        "https://user:hunter2?x@box",
        "https://user:hunter2%40box",
        "http://hunter2@127.0.0.1:1",
        "user:hunter2@box:8470",
        "https://user:hunter2@[::1",
        "https://good:8470 https://user:hunter2@box",
    ],
)
def test_a_password_in_an_address_is_refused_and_repeated_nowhere(url):
    for parse in (parse_url, parse_urls, parse_proxy):
        with pytest.raises(UsageError, match="holds a name or a password") as caught:
            parse(url)
        assert "hunter2" not in str(caught.value) + repr(caught.value.details)


@pytest.mark.parametrize("host", ["a" * 64, f"box.{'a' * 70}.example", "ä" * 63, "a..b", ".box", "a\0b", "a\u2028b"])
def test_a_host_that_no_resolver_takes_is_refused(host):
    with pytest.raises(UsageError, match="is not a URL"):
        parse_url(f"https://{host}:8470")
    with pytest.raises(UsageError, match="is not a proxy's address"):
        parse_proxy(f"http://{host}:3128")
    assert parse_url(f"https://{'a' * 63}.example:1").host == f"{'a' * 63}.example"


def test_the_zone_of_an_ipv6_address_stays_on_this_machine():
    address = parse_url("https://[fe80::1%eth0]:8470")
    assert (address.name, address.netloc) == ("fe80::1", "[fe80::1]:8470")
    assert connect_request(address).splitlines()[:2] == [
        b"CONNECT [fe80::1]:8470 HTTP/1.1",
        b"Host: [fe80::1]:8470",
    ]
