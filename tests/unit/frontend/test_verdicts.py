"""The verdict's part of a page: shown without script, filled again by it, nothing unescaped."""

from django.template.loader import render_to_string

from checkpoints.verdict.result import Hop, LateChannel, Verdict
from frontend.base import verdict_cache

BAD = "<script>alert(1)</script>"


def rendered(verdict: Verdict, diagnosis: str = "") -> str:
    shown = verdict_cache.shown(verdict)
    shown["diagnosis"] = {"tone": "warn", "headline": diagnosis} if diagnosis else None
    return render_to_string("frontend/_verdict.html", {"verdict": shown})


def test_a_calm_verdict_is_one_sentence() -> None:
    text = rendered(Verdict("good", "All is well: it took 212 ms."))
    assert 'data-tone="good"' in text
    assert "All is well: it took 212 ms." in text
    assert text.count(" hidden>") == 5  # No diagnosis, no path, no numbers, no advice, no stack.


def test_everything_of_a_verdict_is_on_the_page() -> None:
    text = rendered(
        Verdict(
            "warn",
            "hourly-1 was slow.",
            because=("It took 5.00 s.",),
            advice=("Salt the key.",),
            path=(Hop("hourly", "hourly-1", "busy 97 %"),),
            channel=LateChannel("flights-0", "hourly-1", "5.00 s after the first one"),
            culprits=("hourly-1",),
            stack='File "orders.py", line 41',
        ),
        "hourly-1 was slow in 7 of the last 10 checkpoints.",
    )
    assert text.index("7 of the last 10") < text.index("hourly-1 was slow.")
    for words in ("It took 5.00 s.", "Salt the key.", "busy 97 %", "line 41"):
        assert words in text
    assert " hidden" not in text


def test_names_and_stacks_are_escaped() -> None:
    text = rendered(
        Verdict(
            "warn",
            BAD,
            (BAD,),
            (BAD,),
            (Hop(BAD, BAD, BAD),),
            LateChannel(BAD, BAD, BAD),
            (BAD,),
            BAD,
        )
    )
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    assert "style=" not in text
