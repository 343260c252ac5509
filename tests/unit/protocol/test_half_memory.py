"""What half messages say is remembered, but not what else they have."""

import tracemalloc

from metaq.protocol.half_messages import half_of
from metaq.protocol.record import encode_attributes, encode_body


def test_large_attributes_of_half_messages_are_not_kept():
    tracemalloc.start()
    try:
        for number in range(20):
            flag, attribute = encode_attributes(
                reserved={"metaq.half": "bank"}, properties={"pad": f"{number:02}" * 250_000}
            )
            assert half_of(flag | 4, encode_body(b"pay", flag, attribute)).group == "bank"
        del attribute
        assert tracemalloc.get_traced_memory()[0] < 2_000_000
    finally:
        tracemalloc.stop()
