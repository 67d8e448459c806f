"""A browser's name for people, from its header User-Agent. Pure."""

import re

# In this order: most browsers name others as well.
_BROWSERS = (
    ("Edge", r"Edg[A-Z]*/"),
    ("Opera", r"OPR/"),
    ("Firefox", r"Firefox/|FxiOS/"),
    ("Chrome", r"Chrom(?:e|ium)/|CriOS/"),
    ("Safari", r"Safari/"),
)
_SYSTEMS = (
    ("Android", r"Android"),
    ("iOS", r"iPhone|iPad"),
    ("Windows", r"Windows"),
    ("macOS", r"Mac OS X"),
    ("Linux", r"Linux"),
)
_LENGTH_MAX = 40


def browser_name(header: str) -> str:
    """Browser and system, such as "Firefox on Linux"; what else called itself, cut short."""
    names = [
        next((name for name, pattern in known if re.search(pattern, header)), "")
        for known in (_BROWSERS, _SYSTEMS)
    ]
    return " on ".join(filter(None, names)) or header[:_LENGTH_MAX] or "not named"
