"""The text of pages."""

import re
from html import unescape
from typing import Any


def words(response: Any) -> str:
    """The text of a page, without its head, its templates and its tags."""
    text = re.sub(
        r"<head>.*?</head>|<template>.*?</template>|<[^>]+>",
        " ",
        response.content.decode(),
        flags=re.DOTALL,
    )
    return " ".join(unescape(text).split())
