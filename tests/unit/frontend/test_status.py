import re
from pathlib import Path

import pytest

import frontend
from frontend.base import status
from jobs.models import DriverStatus, OperationKind, OperationStatus
from weir.protocol.lifecycle import CheckpointStatus, JobStatus, SubtaskStatus

CSS = Path(frontend.__file__).parent / "static/frontend/weir.css"


@pytest.mark.parametrize(
    ("table", "values"),
    [
        (status.JOB, JobStatus),
        (status.CHECKPOINT, CheckpointStatus),
        (status.SUBTASK, SubtaskStatus),
        (status.DRIVER, DriverStatus),
        (status.OPERATION, OperationStatus),
        (status.OPERATION_KIND, OperationKind),
    ],
)
def test_every_state_has_a_name(table: dict, values: type) -> None:
    assert set(table) == set(values)


def test_every_tone_has_a_colour_and_a_sign() -> None:
    """A state is never told by its colour alone."""
    rules = dict(re.findall(r'^\[data-tone="(\w+)"\] \{(.*?)\}', CSS.read_text(), re.MULTILINE))
    assert set(rules) == set(status.TONES)
    signs = [re.search(r"--sign: \"(.)\"", rule).group(1) for rule in rules.values()]
    assert len(set(signs)) == len(signs)
    tables = (status.JOB, status.CHECKPOINT, status.SUBTASK, status.DRIVER, status.OPERATION)
    used = {label.tone for table in tables for label in table.values()}
    assert used <= set(status.TONES)


def test_a_driver_that_says_nothing_is_not_called_running() -> None:
    assert status.of_driver("running", is_silent=False)["text"] == "Running"
    assert status.of_driver("running", is_silent=True)["text"] == "Silent"


def _colours(css: str) -> dict[str, str]:
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", css))


def _luminance(colour: str) -> float:
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_has_the_contrast_that_wcag_asks_for(theme: str) -> None:
    """4.5 to 1 for text on everything it is written on (WCAG 2.2, 1.4.3)."""
    light, dark = CSS.read_text().split("@media (prefers-color-scheme: dark)", 1)
    colours = _colours(light) | (_colours(dark) if theme == "dark" else {})
    pairs = [(text, back) for text in ("text", "quiet", "accent") for back in ("page", "card")]
    pairs += [("text", "sunken"), ("quiet", "sunken"), ("on-accent", "accent"), ("bad", "card")]
    pairs += [(tone, f"{tone}-back") for tone in status.TONES]
    pairs += [("text", f"{tone}-back") for tone in status.TONES]
    poor = {}
    for text, back in pairs:
        lighter, darker = sorted(map(_luminance, (colours[text], colours[back])), reverse=True)
        ratio = (lighter + 0.05) / (darker + 0.05)
        if ratio < 4.5:
            poor[text, back] = round(ratio, 2)
    assert poor == {}
