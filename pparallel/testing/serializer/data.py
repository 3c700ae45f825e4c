"""Plain data, and that one object has nothing to do with the next."""

from __future__ import annotations

import threading
from typing import Any

from pparallel.interfaces.serializer import Serializer
from pparallel.testing.patience import PATIENCE
from pparallel.testing.serializer.base import SerializerTests, round_trip
from pparallel.testing.serializer.samples import PLAIN_DATA
from pparallel.testing.threads import switching_often


class DataTests(SerializerTests):
    """What every serializer takes."""

    def test_keeps_plain_data(self, serializer: Serializer) -> None:
        for obj in PLAIN_DATA:
            found = round_trip(serializer, obj)
            assert type(found) is type(obj)
            # Equal is not enough: 1, 1.0 and True are equal, and so are bytes and a bytearray.
            # Compared outside the assertion: pytest would take minutes to explain megabytes.
            same = repr(found) == repr(obj)
            assert same, f"a {type(obj).__name__} did not arrive as it was sent"

    def test_may_be_used_by_many_threads(self, serializer: Serializer) -> None:
        found: list[bool] = []
        together = threading.Barrier(8)

        def send(number: int) -> None:
            objects = [
                {"number": number, "values": [number] * i, "text": str(number) * i}
                for i in range(200)
            ]
            together.wait(PATIENCE)
            buffers = [serializer.dumps(obj) for obj in objects]
            together.wait(PATIENCE)
            found.append([serializer.loads(each) for each in buffers] == objects)

        threads = [threading.Thread(target=send, args=(number,)) for number in range(8)]
        with switching_often():  # else each would be done before the next has its turn
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert found == [True] * 8

    def test_earlier_buffers_stay_as_they_are(self, serializer: Serializer) -> None:
        objects: list[Any] = [["one", 1] * 100, "two", {"three": 3.0}, bytearray(5000), None]
        sent = [serializer.dumps(obj) for obj in objects]
        copies = [[bytearray(each) for each in buffers] for buffers in sent]
        assert [serializer.loads(each) for each in reversed(copies)] == objects[::-1]
        assert [serializer.loads(each) for each in sent] == objects
