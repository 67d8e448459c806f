"""How elements get from one subtask to another.

A *channel* joins two subtasks and keeps the order of what is put into it. All channels between two
slots share one TCP connection, over which their elements travel as *frames*. Three things here are
decided without a socket, so that a simulation can drive them as production does:

``auth``     two ends of a connection prove that they belong to the same attempt,
``framing``  elements become bytes and are believed again only after they were checked,
``credit``   a receiver bounds what its senders have under way.

What is refused is a ``ChannelError``: the connection is closed, the attempt fails and the next one
starts from the last checkpoint. Nothing is sent twice within an attempt, so a gap cannot be mended.
"""
