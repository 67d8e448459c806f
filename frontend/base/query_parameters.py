"""Parameters from the query of an address; an impossible value counts as absent. Pure."""

BIGINT_MAX = 2**63 - 1  # The largest number in the database.
PAGE_MAX = 999_999_999


def whole_number(text: str | None, most: int) -> int | None:
    """The number in ``text``, from 0 to ``most``; None for any other text."""
    if not text or len(text) > len(str(most)) or not (text.isascii() and text.isdecimal()):
        return None
    number = int(text)
    return number if number <= most else None
