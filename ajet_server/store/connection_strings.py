"""The place that a connection string of a database leads to, without its secrets."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, unquote, urlsplit

# The parameters of libpq that say where a database is; all others may be secrets, or tell how.
_PLACE = ("host", "hostaddr", "port", "dbname", "user", "service", "sslmode")
_PAIR = re.compile(r"\s*(\w+)\s*=\s*(?:'((?:[^'\\]|\\.)*)'|((?:[^\s'\\]|\\.)*))(?=\s|$)")
_HOST = re.compile(r"(\[[^\]]*\]|[^:]*)(?::(\d*))?")


def place_of(dsn: str) -> str:
    """Return the parameters of a connection string or URL of libpq that say where it leads.

    :return: a connection string; "" if `dsn` is neither, because any part could be a secret then.
    """
    try:
        given = _of_url(dsn) if "://" in dsn else _of_pairs(dsn)
    except ValueError:
        return ""
    pairs = [(name, given[name]) for name in _PLACE if given.get(name)]
    return " ".join(f"{name}={_quoted(value)}" for name, value in pairs)


def _of_pairs(dsn: str) -> dict[str, str]:
    given, at = {}, 0
    while at < len(dsn.rstrip()):
        pair = _PAIR.match(dsn, at)
        if pair is None:
            raise ValueError("no connection string")
        name, quoted, plain = pair.groups()
        given[name] = re.sub(r"\\(.)", r"\1", plain if quoted is None else quoted)
        at = pair.end()
    return given


def _of_url(dsn: str) -> dict[str, str]:
    url = urlsplit(dsn)
    login, _, hosts = url.netloc.rpartition("@")
    # A password with a character that should be encoded ends early.
    if url.scheme not in ("postgres", "postgresql") or "@" in url.path + url.query or url.fragment:
        raise ValueError("no URL of a database")
    parts = [_HOST.fullmatch(host) for host in hosts.split(",")]
    named = [part.groups(default="") for part in parts if part is not None]
    if len(named) != len(parts):
        raise ValueError("no URL of a database")
    return {
        "user": unquote(login.partition(":")[0]),
        "host": ",".join(unquote(host.strip("[]")) for host, _ in named),
        "port": ",".join(port for _, port in named) if any(port for _, port in named) else "",
        "dbname": unquote(url.path.removeprefix("/")),
        **dict(parse_qsl(url.query)),
    }


def _quoted(value: str) -> str:
    if re.fullmatch(r"[^\s'\\]+", value):
        return value
    return "'" + re.sub(r"(['\\])", r"\\\1", value) + "'"
