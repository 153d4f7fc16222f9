"""What is noted of a connection string: where it leads, and no secret."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ajet_server.store.connection_strings import place_of


@pytest.mark.parametrize(
    ("dsn", "place"),
    [
        ("host=db user=ajet password=geheim", "host=db user=ajet"),
        ("host = db  dbname='my runs' password='ge heim'", "host=db dbname='my runs'"),
        ("dbname='it\\'s' password=geheim\\ x port=5433 ", "port=5433 dbname='it\\'s'"),
        ("postgresql://ajet:geheim@db.example/ajet", "host=db.example dbname=ajet user=ajet"),
        (
            "postgres://db:5433/ajet?sslmode=require",
            "host=db port=5433 dbname=ajet sslmode=require",
        ),
        ("postgresql://u@h1:1,h2/db", "host=h1,h2 port=1, dbname=db user=u"),
        ("postgresql://[::1]:5432/db?password=geheim", "host=::1 port=5432 dbname=db"),
        ("postgresql:///db?host=/tmp", "host=/tmp dbname=db"),
        ("service=runs", "service=runs"),
        ("", ""),
        # Of a damaged one any part could be a secret.
        ("host=db password=abc geheim", ""),
        ("host=db password='geheim", ""),
        ("password='ge' heim host=db", ""),
        ("postgresql://u:12/34@h/db", ""),
        ("postgresql://u:12?34@h/db", ""),
        ("postgresql://u:12#34@h/db", ""),
        ("nonsense", ""),
    ],
)
def test_the_place_of_a_connection_string(dsn: str, place: str) -> None:
    assert place_of(dsn) == place
    # A place is its own place.
    assert place_of(place) == place


@given(
    secret=st.text(string.printable, min_size=1).map(lambda text: f"7{text}7"),
    form=st.sampled_from(
        [
            "host=h password={} user=u",
            "host=h password='{}' user=u",
            "postgresql://u:{}@h/db",
            "postgresql://u:{}@h:5/db?sslmode=require",
            "postgresql://u@h/db?password={}",
        ]
    ),
)
def test_no_part_of_a_password_is_in_a_place(secret: str, form: str) -> None:
    found = place_of(form.format(secret))
    assert not set(found) & set("7")
