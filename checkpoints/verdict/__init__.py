"""The verdict: why a checkpoint took as long as it did, failed, or is late right now.

From acknowledgements, alignments, the operator graph and the subtasks' work (``facts``) comes one
text (``result``) for job page, checkpoint page, API and alerts. Its first sentence names the
culprit; below it stand the numbers that it rests on and what to do. What is not known is not
claimed.

- ``judge``: the entry; it chooses one of ``completed``, ``failed`` and ``pending``;
- ``completed``: the longest part of the time, and its cause;
- ``failed``, ``pending``: the end of it, or what it still waits for;
- ``waiting``: the subtasks upstream of those that have not acknowledged;
- ``upstream_walk``: from a late barrier, channel by channel, to the subtask that is slow;
- ``causes``: skewed keys, slow storage;
- ``evidence``: the part of the subtasks' reports that is stored for later;
- ``queries``: rows to facts. It and ``evidence`` know Django; the rest is pure.
"""
