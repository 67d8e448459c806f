"""Channels between subtasks: authentication, framing, credit and TCP transport.

A *channel* joins two subtasks and keeps the order of its elements. All channels between two slots
share one TCP connection, over which their elements travel as *frames*. Three parts work without a
socket, so that a simulation can drive them as production does:

- ``auth``: two ends of a connection prove that they belong to the same attempt;
- ``framing``: elements become bytes, and bytes become elements after they were checked;
- ``credit``: a receiver bounds the bytes that its senders have under way.

A refused frame is a ``ChannelError``: the connection is closed, the attempt fails and the next one
starts from the last checkpoint. No frame is sent twice within an attempt, so a gap cannot be
repaired.
"""
