"""Uploaded pipelines are told by the names of their files."""

from checkpoints.verdict.result import Verdict
from checkpoints.verdict.uploaded_names import stored_digests, with_names

DIGEST, OTHER = "5f" * 32, "a0" * 32


def test_stored_files_are_told_by_their_names_and_all_else_stays() -> None:
    verdict = Verdict(
        "warn",
        f"map-1 was stuck in enrich ({DIGEST}.py:41) for 4.80 s.",
        because=(f"'Map' ({OTHER}.py:3) and {DIGEST}", "orders.py:41"),
        advice=(f"See /var/uploads/{DIGEST}.py.",),
        stack=f'  File "/var/weir/uploads/{DIGEST}.py", line 41, in enrich\n    get(url)\n',
    )
    assert stored_digests(verdict) == {DIGEST, OTHER}
    named = with_names(verdict, {DIGEST: "orders.py"})
    assert named.headline == "map-1 was stuck in enrich (orders.py:41) for 4.80 s."
    assert named.because == (f"'Map' ({OTHER}.py:3) and {DIGEST}", "orders.py:41")
    assert named.advice == ("See orders.py.",)
    assert named.stack == '  File "orders.py", line 41, in enrich\n    get(url)\n'
    assert stored_digests(Verdict("good", "orders.py was well")) == set()
