"""What the query of an address says. Whatever nobody can mean counts as not said. Pure."""

BIGINT_MAX = 2**63 - 1  # What a number of the database can be.
PAGE_MAX = 999_999_999


def whole_number(text: str | None, most: int) -> int | None:
    """A number from 0 to ``most``; None where ``text`` is none of these."""
    if not text or len(text) > len(str(most)) or not (text.isascii() and text.isdecimal()):
        return None
    found = int(text)
    return found if found <= most else None
