"""The verdict: why a checkpoint took as long as it did, failed, or is late right now.

From acknowledgements, alignments, the operator graph and the subtasks' work (``facts``) comes one
text (``result``) for job page, checkpoint page, API and alerts. Its first sentence names the
culprit; below it stand the numbers that it rests on and what to do. It claims nothing that was not
reported.

- ``judge``: the entry; it chooses one of ``completed``, ``failed`` and ``pending``;
- ``completed``: the longest part of the time, and its cause;
- ``failed``, ``pending``: why it failed or was aborted, or what it still waits for;
- ``waiting``: the subtasks upstream of those that have not acknowledged;
- ``upstream_walk``: from a late barrier, channel by channel, to the slow subtask;
- ``causes``: skewed keys, slow storage, a sink's part; ``starvation``: slots, drivers and hosts
  without a processor;
- ``channels``: a channel of which neither end is to blame; none within a host is the network's;
- ``stacks``: the line of user code in a stack, and what it waits for;
- ``uploaded_names``: the names of uploaded pipelines, in place of their stored files;
- ``diagnosis``: one judgement of the last checkpoints together;
- ``wording``: the words for subtasks, durations and shares;
- ``evidence``: the part of the subtasks' reports that is stored for later;
- ``queries``: rows to facts. It and ``evidence`` know Django; the rest is pure.
"""
