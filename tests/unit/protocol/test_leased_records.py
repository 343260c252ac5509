"""The records of an answer to ACQUIRE: a body that does not have them whole is none."""

import pytest

from metaq.protocol.errors import RemoteProtocolError
from metaq.protocol.shared import decode_leased


@pytest.mark.parametrize("count", [1, 2, 1000])
def test_a_body_that_ends_within_its_rows_is_refused(count: int):
    with pytest.raises(RemoteProtocolError, match=rf"{count} leased records have a body of 10 bytes only"):
        decode_leased(memoryview(bytes(10)), count)
