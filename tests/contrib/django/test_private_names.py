"""The private names of Django that weblock uses still mean what they did."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.db import connection, transaction
from django.http import HttpResponse, StreamingHttpResponse
from django.test import TestCase

from weblock.contrib.django.internals import close_together, is_of_test_case


class BlockOfTestCase(TestCase):
    def test_it_is_told_from_others(self) -> None:
        """The ``atomic`` block around a test is known from one that the test has opened."""
        with transaction.atomic():
            blocks = [is_of_test_case(block) for block in connection.atomic_blocks]
        assert len(blocks) > 1
        assert blocks == [True] * (len(blocks) - 1) + [False]


@pytest.mark.django_db  # Connections that other tests have opened are looked at when a response closes.
def test_a_response_closes_what_it_replaces() -> None:
    """The content of a response that was replaced is closed when its replacement is, and not before."""
    closed = []

    def content() -> Iterator[bytes]:
        try:
            yield b"never read to the end"
        finally:
            closed.append(True)

    body = content()
    next(body)
    former, response = StreamingHttpResponse(body), HttpResponse()
    close_together(response, former)
    assert not closed
    response.close()
    assert closed
