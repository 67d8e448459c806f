"""Subtasks that wait: what a step would do for one of them, which the ready queue must know of."""

from weir.protocol.lifecycle import SubtaskStatus
from weir.worker.ready_queue import ReadyQueue
from weir.worker.subtask import Subtask


def overlooked(subtask: Subtask, ready: ReadyQueue) -> str:
    """The work of a subtask that waits outside the queue; empty: it has none before its timer."""
    if subtask.status is not SubtaskStatus.RUNNING or subtask in ready._ready:
        return ""
    due_ms = subtask.next_timer_ms()
    if due_ms is not None and ready._timers.get(subtask) != due_ms:
        return f"a timer at {due_ms}, and the queue knows of {ready._timers.get(subtask)}"
    if subtask._suspended_by is not None or subtask._is_held:
        return ""
    for operator, _ in subtask._pending_slices:
        if operator.has_pending:
            return "pending work"
    if subtask._input_done or subtask._is_draining:
        return "an end to come to"
    if subtask.inputs.has_backlog:
        return "restored input"
    for channel in subtask.inputs.channels.values():
        if channel.queue and not channel.blocked:
            return "input"
    return ""
