"""The list of mutations: file, text, what takes its place, and the tests that are asked.

Chosen by hand where a slip would lose, double or reorder records, delete what is needed, let in
what must stay out, or show what is not true. A text occurs once in its file, so that the list says
which line is meant, and says so for as long as the line is there.
"""

# ruff: noqa: E501 - lines are quoted whole.

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutant:
    """One planted bug."""

    file: str
    before: str
    after: str
    tests: tuple[str, ...]  # Files and directories, in the order in which they are asked.


_SIMULATION = "tests/simulation/test_simulation.py"


def _planted(tests: str, file: str, *changes: tuple[str, str]) -> Iterator[Mutant]:
    for before, after in changes:
        yield Mutant(file, before, after, tuple(tests.split()))


MUTANTS: tuple[Mutant, ...] = (
    *_planted(
        f"tests/unit/protocol/test_alignment.py {_SIMULATION}",
        "weir/protocol/alignment.py",
        ("if cancelled_id <= self._settled_id:", "if cancelled_id < self._settled_id:"),
        (
            "if self._aligning is None or not self._live <= self._blocked:",
            "if self._aligning is None:",
        ),
        ("if self._live <= self._blocked | {channel}:", "if self._live <= self._blocked:"),
        (
            "self._given_up.remove(min(self._given_up))",
            "self._given_up.remove(max(self._given_up))",
        ),
        ("if self._live <= count.arrived:", "if count.arrived:"),
        (
            "return self._settle(min(self._pending)) if len(self._pending) > PENDING_MAX else []",
            "return []",
        ),
    ),
    *_planted(
        f"tests/unit/protocol/test_unaligned.py tests/unit/worker/test_in_flight.py {_SIMULATION}",
        "weir/protocol/unaligned.py",
        (
            "if not _may_overtake(barrier) or channel in self._in_order:",
            "if not _may_overtake(barrier):",
        ),
        ("sorted(self._live - self._blocked - at_head)", "sorted(self._live - self._blocked)"),
        ("return self._live & self._in_order <= self._blocked | at_head", "return True"),
    ),
    *_planted(
        "tests/unit/protocol/test_scheduling.py tests/unit/protocol/test_coordinator.py",
        "weir/protocol/scheduling.py",
        (
            "if len(pending) >= config.concurrent_max and",
            "if len(pending) > config.concurrent_max and",
        ),
        ("// interval_ms + 1) * interval_ms", "// interval_ms) * interval_ms"),
        (
            "if not config.min_pause_ms <= delay_ms <= interval_ms:",
            "if not delay_ms <= interval_ms:",
        ),
        ("return max(config.interval_ms, config.min_pause_ms)", "return config.interval_ms"),
    ),
    *_planted(
        "tests/unit/protocol/test_coordinator.py",
        "weir/protocol/coordinator.py",
        ("tuple(c for c in state.completed if c.checkpoint_id not in bases)", "state.completed"),
        ("return given_up.then(_discard_at_end)", "return given_up"),
    ),
    *_planted(
        "tests/unit/protocol/test_restarts.py",
        "weir/protocol/restarts.py",
        (
            "state.restart_count >= state.config.attempts_max",
            "state.restart_count > state.config.attempts_max",
        ),
        ("len(recent) > state.config.failures_max", "len(recent) >= state.config.failures_max"),
        (
            "now_ms - state.restarts_at_ms >= config.reset",
            "now_ms - state.restarts_at_ms < config.reset",
        ),
    ),
    *_planted(
        "tests/unit/protocol/test_repeated_errors.py",
        "weir/protocol/repeated_errors.py",
        ("self.count >= TIMES", "self.count > TIMES"),
        ("(last.place, last.completed_count) != (place, completed_count)", "last.place != place"),
    ),
    *_planted(
        "tests/unit/protocol tests/unit/jobmaster tests/database/checkpoints/test_discards.py",
        "weir/protocol/retention.py",
        ("checkpoint.abandoned_at_ms + config.abandoned_ttl_ms", "checkpoint.abandoned_at_ms"),
    ),
    *_planted(
        "tests/unit/protocol/test_lineage.py",
        "weir/protocol/lineage.py",
        ("if base.next_id <= last:", "if base.next_id < last:"),
        ("if of_output and not base.rewinds_output:", "if not base.rewinds_output:"),
    ),
    *_planted(
        "tests/unit/protocol/test_restore.py",
        "weir/protocol/restore.py",
        ("if lost and not allow_non_restored_state:", "if lost and allow_non_restored_state:"),
        ("if target.parallelism > restored:", "if target.parallelism >= restored:"),
        (
            "if snapshot.parallelism != target.parallelism and not exchange.may_be_overtaken:",
            "if snapshot.parallelism > target.parallelism and not exchange.may_be_overtaken:",
        ),
        ('if handles[0].mode == "split":', 'if handles[0].mode != "broadcast":'),
    ),
    *_planted(
        "tests/unit/protocol/test_operations.py",
        "weir/protocol/operations.py",
        (
            "if state.phase is not Phase.RETURN_DUE or state.before is None:",
            "if state.before is None:",
        ),
        ("if state.saved == uri:", "if state.saved != uri:"),
    ),
    *_planted(
        "tests/unit/protocol/test_pending.py tests/unit/protocol/test_coordinator.py",
        "weir/protocol/pending.py",
        (">= subtasks.last - subtasks.first + 1", ">= subtasks.last - subtasks.first"),
        ("0 <= chain.index < planned.parallelism", "0 <= chain.index <= planned.parallelism"),
    ),
    *_planted(
        "tests/unit/worker/test_gates.py tests/unit/worker/test_subtask.py tests/unit/worker/test_watermarks_within.py",
        "weir/worker/gates.py",
        ("if channel.blocked or not channel.queue:", "if not channel.queue:"),
        ("not other.ended and not other.idle", "not other.ended"),
        (
            "self._barriers_waiting[element.checkpoint_id] += 1",
            "self._barriers_waiting[element.checkpoint_id] += 2",
        ),
        ("channel.bytes_out += element.size", "channel.bytes_out = element.size"),
        ("or size + following.size > self._bytes_max", ""),
        ("if not channel.overdraft:", "if True:"),
    ),
    *_planted(
        "tests/unit/worker/test_snapshotter.py tests/unit/worker/test_in_flight.py",
        "weir/worker/snapshotter.py",
        ("is_empty = target is None and not any(", "is_empty = not any("),
        ("if is_empty and not is_open:", "if is_empty:"),
        ("if running.cancelled or running.has_failed:", "if running.has_failed:"),
        ("if running.is_open or running.under_way:", "if running.under_way:"),
    ),
    *_planted(
        "tests/unit/worker/test_ready_queue.py",
        "weir/worker/ready_queue.py",
        ("due_ms <= now_ms:", "due_ms < now_ms:"),
        ("if timer_ms < self._entries.get(", "if timer_ms > self._entries.get("),
    ),
    *_planted(
        f"tests/unit/worker/test_subtask.py tests/unit/worker/test_subtask_stop.py tests/unit/worker/test_in_flight.py tests/unit/worker/test_stop_the_world.py {_SIMULATION}",
        "weir/worker/subtask.py",
        ("if element.checkpoint_id > self._snapshot_id:", "if element.checkpoint_id >= 0:"),
        ("if checkpoint_id <= self._completed_id:", "if checkpoint_id < self._completed_id:"),
        ("if checkpoint_id == self._suspended_by:", "if checkpoint_id != self._suspended_by:"),
        (
            "(self.status is SubtaskStatus.ENDED or was_suspended)",
            "self.status is SubtaskStatus.ENDED",
        ),
    ),
    *_planted(
        f"tests/unit/worker/test_worker.py {_SIMULATION}",
        "weir/worker/subtask.py",
        ("return not (self._source or self._has_ended or", "return not (self._source or"),
        ("is_paused = self.status is SubtaskStatus.ENDED or", "is_paused ="),
        ("SubtaskStatus.ENDED or self._suspended_by is not None", "SubtaskStatus.ENDED"),
    ),
    *_planted(
        "tests/unit/worker/test_worker.py",
        "weir/operators/user_code.py",
        ("RAISED = (Exception, SystemExit)", "RAISED = (Exception,)"),
    ),
    *_planted(
        "tests/unit/datastream/test_datastream.py",
        "weir/datastream/checks/arguments.py",
        ("if spec.name in keys or spec.name in bounds:", "if spec.name in bounds:"),
        ("next((key for key in keys if key in bounds), None):", "False:"),
    ),
    *_planted(
        "tests/unit/worker/test_in_flight.py",
        "weir/worker/in_flight.py",
        ("snapshot.recorded.discard(channel_id)", "pass"),
        (
            "if snapshot is None or snapshot.is_recording or snapshot.waiting:",
            "if snapshot is None or snapshot.is_recording:",
        ),
        ("return replace(records, payload=records.payload.copied())", "return records"),
        ("in self._inputs.backlog_of(gate_index):", "in ():"),
    ),
    *_planted(
        "tests/unit/worker/test_brief_slices.py",
        "weir/worker/brief_slices.py",
        ("if c > checkpoint_id}", "if c != checkpoint_id}"),
    ),
    *_planted(
        "tests/unit/worker/test_worker.py",
        "weir/worker/assembly.py",
        (
            "            check_output_claimed(node.files, deploy.job_id, deploy.attempt)",
            "            pass",
        ),
    ),
    *_planted(
        "tests/process/worker/test_process.py",
        "weir/worker/process.py",
        ("self._clock.at_least(element.triggered_at_ms)", "pass"),
    ),
    *_planted(
        "tests/unit/worker/test_stalls.py",
        "weir/worker/stalls.py",
        ("(self._stood_ns if since_ns == self._met_since_ns else 0)", "self._stood_ns"),
    ),
    *_planted(
        "tests/unit/worker/test_stalls.py",
        "weir/worker/standstill.py",
        ("sleeps >= ASKED_SHARE * ns / 1e9 / sys.getswitchinterval()", "sleeps > 0"),
    ),
    *_planted(
        "tests/unit/worker/test_garbage.py",
        "weir/worker/memory/garbage.py",
        ("        gc.freeze()", "        pass"),
        ("        gc.unfreeze()", "        pass"),
        ("if self._is_asked or now < self._due_ns:", "if now < self._due_ns:"),
        ("        self._before = self._held_bytes()", "        pass"),
    ),
    *_planted(
        "tests/process/worker/test_threads_beside.py",
        "weir/worker/inspection/threads_beside.py",
        ("if not asked_for_lock(self._sleeps() - began_sleeps, late_ns):", "if False:"),
    ),
    *_planted(
        "tests/unit/state/test_timers.py",
        "weir/state/timers.py",
        ("self._heap[0][0] > now_ms:", "self._heap[0][0] >= now_ms:"),
        ("while heap and tables[heap[0][2]]", "while False and tables[heap[0][2]]"),
        ("if group not in key_groups:", "if False:"),
        ("            (timer[0], number, index,", "            (timer[0], number + 1, index,"),
        ("if timer in self._numbers.tables[index]:", "if False:"),
    ),
    *_planted(
        "tests/unit/state/backends/test_rocksdb_items.py tests/unit/state/backends/test_increments.py",
        "weir/state/backends/rocksdb_items.py",
        (
            'case "list", ListTypeInfo() if not type_info.element_type.is_mutable:',
            'case "list", ListTypeInfo():',
        ),
        ("                self.items.remove(group, row)", "                pass"),
        ("                if key in kept:", "                if False:"),
        ("        self.items.undo()", "        pass"),
        (
            "        return default if value is None else value_of_item(value)",
            "        return default if value is None else value",
        ),
    ),
    *_planted(
        "tests/unit/state/backends/test_rocksdb_items.py tests/unit/state/backends/test_increments.py",
        "weir/state/backends/rocksdb_views.py",
        ("            if is_divided:", "            if True:"),
        ("values.append(None if value is Mark.DIVIDED else value)", "values.append(value)"),
        ("                part.removed.append(key_of_item(item))", "                pass"),
        ("    if data == LOOKED_UP:", "    if False:"),
    ),
    *_planted(
        "tests/unit/state/backends/test_changed_keys.py tests/unit/state/backends/test_increments.py",
        "weir/state/backends/changed_keys.py",
        ("interval.read(start, end, -number)", "interval.read(start, end, number)"),
    ),
    *_planted(
        "tests/unit/state/backends/test_rocksdb_timers.py",
        "weir/state/backends/rocksdb_timers.py",
        ("            self._made.remove(_GROUP, slot)", "            pass"),
        ("if far := [slot for slot in slots if slot >= self._horizon]:", "if far := slots:"),
        ("                self._table.put(_GROUP, later, True)", "                pass"),
    ),
    *_planted(
        "tests/unit/state/backends/test_increments.py",
        "weir/state/backends/rocksdb_timers.py",
        ("            self._noted[_GROUP][slot] = False", "            pass"),
    ),
    *_planted(
        "tests/unit/state",
        "weir/state/shared.py",
        ("copied.pop(key, None)", "pass"),
        ("self.tables[group].pop(key, None)", "pass"),
    ),
    *_planted(
        "tests/unit/state/backends/test_increments.py",
        "weir/state/shared.py",
        ("            self.noted[group][key] = True", "            pass"),
        ("        if log:  # Only now:", "        if False:  # Only now:"),
        ("            for group, keys in noted.items():", "            for group, keys in ():"),
    ),
    *_planted(
        "tests/unit/state/backends/test_increments.py",
        "weir/state/timers.py",
        ("            self._noted.note(index, timer, False)", "            pass"),
        (
            "                self._noted.note(index, timer, number is not None)",
            "                pass",
        ),
    ),
    *_planted(
        "tests/unit/state/backends/test_increments.py",
        "weir/state/keyed_timers.py",
        ("            self._progress.limit_at_times(_NOTED_BYTES_MAX)", "            pass"),
    ),
    *_planted(
        "tests/unit/state/backends/test_increments.py",
        "weir/state/store.py",
        (
            '        self._timers.go_on_from(checkpoint_id, shared.get("timers", ()))',
            "        pass",
        ),
    ),
    *_planted(
        "tests/unit/state/backends/test_increments.py",
        "weir/state/backends/heap.py",
        ("            self.noted[group][slot] = True", "            pass"),
        ("            table.limit()", "            pass"),
    ),
    *_planted(
        "tests/unit/state tests/unit/graph/test_key_groups.py tests/unit/operators/test_keyed.py",
        "weir/state/codec.py",
        ("% np.uint32(max_parallelism)).astype", "% np.uint32(max_parallelism + 1)).astype"),
        ("(values + 0.0).view(np.uint64)", "values.view(np.uint64)"),
    ),
    *_planted(
        "tests/unit/state",
        "weir/state/columns/table.py",
        ("return self.rows - 1 + self.has_null", "return self.rows - 1"),
        ("if len(groups) and not (owned.first", "if False and not (owned.first"),
    ),
    *_planted(
        "tests/unit/state/columns",
        "weir/state/columns/changed_rows.py",
        ("self._flags[self._old : self._rows] = True", "pass"),
        ("self._listed.append(slots.copy())", "self._listed.append(slots)"),
    ),
    *_planted(
        "tests/unit/state/columns",
        "weir/state/columns/column.py",
        ("            view.save_before_write(slots)", "            pass"),
        ("            changed.mark(slots)", "            pass"),
        ("values[first:last] = saved[rows[first:last] - start]", "pass"),
    ),
    *_planted(
        "tests/unit/state/backends/test_mapped.py",
        "weir/state/columns/column.py",
        ("if self._arrays.shares(old, self._values):", "if False:"),
    ),
    *_planted(
        "tests/unit/state/columns/test_layout.py",
        "weir/state/columns/layout.py",
        ("sorted(dtypes, key=lambda name: -dtypes[name].itemsize)", "list(dtypes)"),
        ("        if rows > len(self._rows):", "        if rows > len(self._rows) + 1:"),
    ),
    *_planted(
        "tests/unit/state/columns/test_integer_index.py",
        "weir/state/columns/integer_index.py",
        ("if self._low is not None and not self._spans(keys):", "if False:"),
    ),
    *_planted(
        "tests/unit/state/columns/test_bytes_index.py",
        "weir/state/columns/bytes_index.py",
        ("if pc.any(differs).as_py():", "if False:"),
        ("        if self._stand_ins:", "        if False:"),
    ),
    *_planted(
        "tests/unit/state",
        "weir/state/state_files.py",
        ("if version > FORMAT_VERSION:", "if False:"),
    ),
    *_planted(
        "tests/unit/state tests/unit/operators",
        "weir/state/operator_state.py",
        ('if mode not in ("split", "union"):', "if False:"),
    ),
    *_planted(
        "tests/unit/storage tests/unit/local",
        "weir/storage/local.py",
        ("if not created and not isinstance(error, FileExistsError):", "if False:"),
        ("os.fsync(self._file.fileno())", "pass"),
        ("(*_GONE, errno.ENOTEMPTY, errno.EEXIST)", "_GONE"),
    ),
    *_planted(
        "tests/unit/storage tests/unit/output",
        "weir/storage/manifest.py",
        ("if version > VERSION:", "if False:"),
        ('return "" if checksum == handle.checksum', 'return "" if True'),
        (
            'return 3 if any(handle.kind == "channel" for handle in manifest.handles) else 2',
            "return 3",
        ),
        ("for _, job in sorted(completed, reverse=True)", "for _, job in sorted(completed)"),
    ),
    *_planted(
        "tests/unit/storage tests/unit/worker/test_snapshotter.py tests/unit/local",
        "weir/storage/writer.py",
        ("if is_savepoint and own.exists(SAVEPOINT_MANIFEST):", "if False:"),
        ("if durable:", "if False:"),
    ),
    *_planted(
        f"tests/unit/jobmaster tests/simulation/test_known_fence_bugs.py {_SIMULATION}",
        "weir/jobmaster/manifest_writer.py",
        (
            "if checkpoint_id in self._writing or self._fence.is_fenced_off:",
            "if checkpoint_id in self._writing:",
        ),
        ("if self._store.read(self._path(checkpoint_id)) == manifest:", "if True:"),
        ("if (path := handle.path) is not None and not own.exists(path):", "if False:"),
    ),
    *_planted(
        f"tests/unit/jobmaster {_SIMULATION}",
        "weir/jobmaster/checkpoint_files.py",
        ("for number in own) < retained_max:", "for number in own) >= retained_max:"),
    ),
    *_planted(
        f"tests/unit/jobmaster {_SIMULATION}",
        "weir/jobmaster/fence.py",
        ("if newest > self.attempt:", "if False:"),
        ("if newest < self._claimed:", "if False:"),
    ),
    *_planted(
        f"tests/unit/jobmaster {_SIMULATION}",
        "weir/jobmaster/final_checkpoint.py",
        ("return is_stop or checkpoint_id == self.checkpoint_id", "return is_stop"),
    ),
    *_planted(
        f"tests/unit/jobmaster {_SIMULATION}",
        "weir/jobmaster/restore_choice.py",
        ("if isinstance(known, Tombstone) and known.attempt == manifest.attempt:", "if False:"),
        ("return not is_copy or self.went_on_from(manifest)", "return not is_copy"),
        ("if newest < known:", "if False:"),
        (" if not isinstance(one.manifest, Tombstone))", ")"),
    ),
    *_planted(
        "tests/unit/jobmaster",
        "weir/jobmaster/restorer.py",
        ("known=completed or self.progress.checkpoint", "known=self.progress.checkpoint"),
        ("known=completed or self.progress.checkpoint", "known=completed or 0"),
        ("            claimed.append(directory)", "            pass"),
    ),
    *_planted(
        f"tests/unit/jobmaster {_SIMULATION}",
        "weir/jobmaster/slots.py",
        ("            if silent_ms >= self._timeout_ms * (", "            if False and ("),
        ("(HEARD_SHARE if index in suspects else 1)", "1"),
        ("return len(self._slots) >= self._needed", "return len(self._slots) > self._needed"),
        ("before = self._places or range(self._needed)", "before = range(self._needed)"),
        ("(self._slots[index].has_failed, ", "("),
        ("        if not self.are_enough:", "        if True:"),
    ),
    *_planted(
        f"tests/unit/storage/test_local_directory.py {_SIMULATION}",
        "weir/storage/local_directory.py",
        ("            if abandoned == line", "            if abandoned"),
        ("is_spared = not is_over", "is_spared = False"),
        ("is_spared = not is_over", "is_spared = True"),
        ('label.startswith(f"{owner} ".encode())', "label.startswith(owner.encode())"),
        ("is_spared = _age_s(directory) < _SPARED_S", "is_spared = False"),
        ("os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)", "os.O_RDONLY | os.O_DIRECTORY)"),
        ("fcntl.LOCK_SH | fcntl.LOCK_NB", "fcntl.LOCK_EX | fcntl.LOCK_NB"),
    ),
    *_planted(
        "tests/process/worker/test_slot_copies.py",
        "weir/spark/slot.py",
        (
            "self._copies.leave(is_over=self._is_released)",
            "self._copies.leave(is_over=True)",
        ),
    ),
    *_planted(
        "tests/process/worker/test_supervisor.py",
        "weir/spark/slot.py",
        ("if exit_code in KILLS:", "if not exit_code:"),
        ("if not self._may_return:", "if False:"),
    ),
    *_planted(
        f"tests/unit/storage/test_local_copies.py {_SIMULATION}",
        "weir/storage/local_copies.py",
        ("if self.size <= bytes_max:  # More", "if True:  # More"),
        ("sorted(written_ns, key=written_ns.__getitem__)", "sorted(written_ns)"),
    ),
    *_planted(
        f"tests/unit/jobmaster {_SIMULATION}",
        "weir/jobmaster/job_master.py",
        ("self._has_run or self._restorer.progress.checkpoint > 0", "self._has_run"),
        (
            "self.left is not None or self.status in (JobStatus.FAILING, JobStatus.RESTARTING)",
            "self.left is not None",
        ),
        (
            "if known.spark_attempt >= slot.spark_attempt:",
            "if known.spark_attempt > slot.spark_attempt:",
        ),
        ("if len(self._workers) < self.slot_count:", "if False:"),
        ("trusts_files = before.number == 0 or before.has_run", "trusts_files = True"),
        ("and attempt.trusts_files and not attempt.has_run:", "and not attempt.has_run:"),
        ("delay_ms = self._restarts.delay(now) if counts else 0.0", "delay_ms = 0.0"),
        ("had_them = self._slots.were_enough or (", "had_them = ("),
    ),
    *_planted(
        "tests/unit/channels/test_credit.py",
        "weir/channels/credit.py",
        ("if size < 1 or self._available_bytes + size > self._window_bytes:", "if size < 1:"),
        (
            "if 2 * self._owed_bytes < self._window_bytes:",
            "if self._owed_bytes < self._window_bytes:",
        ),
    ),
    *_planted(
        "tests/unit/channels/test_framing.py",
        "weir/channels/framing.py",
        (
            "if batch.type is not None and batch.type.has_pickles and not self._pickles:",
            "if False:",
        ),
        (
            "if length > (bound := payload_bytes_max(self._frame_bytes_max)):",
            "if (bound := payload_bytes_max(self._frame_bytes_max)) < 0:",
        ),
        ("if number > count + 1:", "if False:"),
    ),
    *_planted(
        "tests/process/channels/test_control.py",
        "weir/channels/control_connection.py",
        ("socket.TCP_USER_TIMEOUT, unanswered_ms_max)", "socket.TCP_USER_TIMEOUT, 30_000)"),
    ),
    *_planted(
        "tests/unit/channels/test_auth.py",
        "weir/channels/auth.py",
        ("if len(secret) < SECRET_BYTES_MIN:", "if False:"),
        ("if hmac.compare_digest(nonce,", "if False and hmac.compare_digest(nonce,"),
    ),
    *_planted(
        "tests/unit/output",
        "weir/output/needs.py",
        ("not self.may_run and manifest.kind not in SAVEPOINT_KINDS", "not self.may_run"),
        ("return attempt > self.newest or (", "return ("),
    ),
    *_planted(
        "tests/unit/output",
        "weir/output/output_claims.py",
        ("if attempt <= up_to:", "if attempt != up_to + 1:"),
    ),
    *_planted(
        "tests/database/checkpoints/test_discards.py tests/database/checkpoints/test_savepoints.py",
        "checkpoints/retention/discards.py",
        (
            "return (manifest.job_id, manifest.checkpoint_id) == (row.job_id, row.number)",
            "return True",
        ),
        ("2.0 ** min(row.discard_tries - 1, 20)", "2.0 ** 0"),
        (
            "needed = references.retained_ids(job) | references.previewed_ids(job)",
            "needed = references.retained_ids(job)",
        ),
    ),
    *_planted(
        "tests/database/checkpoints/test_claimed_storage.py",
        "checkpoints/catalog/locations.py",
        ("if attempt is None or is_cleared:", "if True:"),
        ("if attempt is None or is_cleared:", "if attempt is None:"),
        ("token_digest__startswith=managed.driver", 'token_digest__startswith=""'),
    ),
    *_planted(
        "tests/database/checkpoints/test_claimed_storage.py",
        "checkpoints/retention/finalization.py",
        (
            "store, path = locations.claimed_store_of(job),",
            "store, path = locations.store_of(job),",
        ),
    ),
    *_planted(
        "tests/database/checkpoints/test_claimed_storage.py",
        "checkpoints/retention/sweep.py",
        ("locations.own_store_of(job)  # Elsewhere", "pass  # Elsewhere"),
    ),
    *_planted(
        "tests/database/frontend/test_listing.py tests/database/frontend/test_live.py",
        "checkpoints/catalog/undeleted.py",
        ("discard_tries__gte=TRIES_MIN", "discard_tries__gte=1"),
    ),
    *_planted(
        "tests/database/checkpoints/test_withdrawals.py",
        "checkpoints/retention/withdrawn_output.py",
        (
            "row.number for row in discarded if row.abandoned_at is not None or row.attempt < newest",
            "row.number for row in discarded if row.abandoned_at is not None",
        ),
    ),
    *_planted(
        "tests/database/controlplane/test_retention.py tests/database/checkpoints/test_old_rows.py",
        "checkpoints/retention/rows.py",
        ("rows = rows.filter(number__lt=unsettled)", "pass"),
    ),
    *_planted(
        "tests/database/checkpoints/test_savepoints.py tests/database/checkpoints/test_going_back.py",
        "checkpoints/retention/references.py",
        ("if not needed_by and checkpoint.number in retained_ids(job):", "if False:"),
    ),
    *_planted(
        "tests/database/checkpoints/test_going_back.py tests/database/api/test_jobs.py tests/database/jobs/test_operations.py",
        "checkpoints/operations/requests.py",
        ("if not 1 <= parallelism <= PARALLELISM_MAX:", "if not 1 <= parallelism:"),
        (
            "if limit is not None and parallelism > limit:",
            "if limit is not None and parallelism >= limit:",
        ),
    ),
    *_planted(
        "tests/database/checkpoints/test_savepoints.py tests/database/api/test_savepoints.py tests/database/checkpoints/test_going_back.py",
        "checkpoints/operations/savepoints.py",
        (
            "if checkpoint is None or checkpoint.status != CheckpointStatus.COMPLETED:",
            "if checkpoint is None:",
        ),
        ("if own.count() < config_of(claimant).retained_max:", "if False:"),
    ),
    *_planted(
        "tests/database/checkpoints/test_ticking.py tests/database/checkpoints/test_coordination.py",
        "checkpoints/coordinator/shell.py",
        ("row.due_at > clock.from_ms(now_ms):", "row.due_at < clock.from_ms(now_ms):"),
    ),
    *_planted(
        "tests/database/checkpoints/test_coordination.py tests/database/checkpoints/test_going_back.py",
        "checkpoints/coordinator/read_model.py",
        ("row.switched_count += len(switched)", "row.switched_count += 0"),
        (
            "if row.status in UNCOMPLETED and self._is_of_live_driver(stored):",
            "if row.status in UNCOMPLETED:",
        ),
    ),
    *_planted(
        "tests/unit/checkpoints tests/database/checkpoints/test_verdicts.py",
        "checkpoints/verdict/causes.py",
        ("return self.bytes_per_s >= GOOD_BYTES_PER_S", "return False"),
    ),
    *_planted(
        "tests/unit/checkpoints",
        "checkpoints/verdict/completed.py",
        (" and not (times.interval_ms and took > times.interval_ms):", ":"),
    ),
    *_planted(
        "tests/unit/checkpoints tests/database/checkpoints/test_verdicts.py",
        "checkpoints/verdict/pending.py",
        (
            "return took >= max(LATE_FLOOR_MS, LATE_FACTOR * times.typical_ms)",
            "return took >= LATE_FACTOR * times.typical_ms",
        ),
    ),
    *_planted(
        "tests/unit/checkpoints",
        "checkpoints/conditions/judge.py",
        ("if facts.failed_in_a_row > 1:", "if facts.failed_in_a_row > 2:"),
        ("if waited <= patience:", "if waited > patience:"),
    ),
    *_planted(
        "tests/unit/jobs tests/database/jobs/test_services.py tests/database/frontend/test_configuration.py",
        "jobs/redaction.py",
        ("return HIDDEN if is_secret(name) and value else", "return HIDDEN if False else"),
    ),
    *_planted(
        "tests/database/jobs/test_submissions.py tests/database/api/test_jobs.py",
        "jobs/submissions.py",
        (
            "if SparkMaster.parse(master).kind is MasterKind.OTHER or len(master) > 200:",
            "if len(master) > 200:",
        ),
        ('if path.is_relative_to(real_root) and path.suffix == ".py"', 'if path.suffix == ".py"'),
    ),
    *_planted(
        "tests/database/jobs/test_recovery.py tests/database/checkpoints/test_recovery.py tests/database/checkpoints/test_clock_moves.py",
        "jobs/due_jobs.py",
        ("if now < pulse.resumed_at + timeout:", "if False:"),
    ),
    *_planted(
        "tests/database/checkpoints/test_ticking.py tests/database/checkpoints/test_gateway.py",
        "checkpoints/ticks.py",
        (
            "if job is None or not _heard(now).filter(pk=job_id).exists():",
            "if job is None:",
        ),
        ("speaking.filter(sent_at__gte=", "speaking.filter(heard_at__gte="),
    ),
    *_planted(
        "tests/database/checkpoints/test_gateway.py",
        "checkpoints/driver_protocol.py",
        ("return on_its_way_ms if on_its_way_ms >= HELD_UP_MS else 0", "return 0"),
        (
            "_note_time_lost(job, min(lost_ms, silent_ms), now_ms)",
            "_note_time_lost(job, lost_ms, now_ms)",
        ),
    ),
    *_planted(
        "tests/database/api/test_jobs.py tests/database/jobs/test_services.py tests/database/jobs/test_operations.py",
        "jobs/services.py",
        ("len(key) > limit or not key.isprintable()", "len(key) > limit"),
    ),
    *_planted(
        "tests/database/jobs/test_events.py",
        "jobs/events/attempts.py",
        ("self._unsaved.pop(event.attempt, None)", "pass"),
        (
            "if attempt is None or attempt.restored_checkpoint is None:",
            "if attempt is None:",
        ),
    ),
    *_planted(
        "tests/unit/alerts tests/database/alerts",
        "controlplane/alerts/machine.py",
        ("if now - since >= policy.hold:", "if True:"),
        (
            "if passed >= policy.cooldown and now - since >= policy.hold:",
            "if now - since >= policy.hold:",
        ),
    ),
    *_planted(
        "tests/unit/alerts tests/database/alerts tests/database/api/test_alerts.py",
        "controlplane/alerts/silences.py",
        ("elif until_at - max(from_at, now) > LONGEST:", "elif False:"),
    ),
    *_planted(
        "tests/unit/alerts tests/database/alerts",
        "controlplane/alerts/matching.py",
        ("return max(covering, key=", "return min(covering, key="),
    ),
    *_planted(
        "tests/unit/deliveries",
        "controlplane/deliveries/machine.py",
        ("return self.held_until is not None and now < self.held_until", "return False"),
        ("if line not in heads or one.sequence < heads[line].sequence:", "if line not in heads:"),
        (
            "return min(policy.retry_max, _doubled(policy.retry_first, tries - 1))",
            "return _doubled(policy.retry_first, tries - 1)",
        ),
    ),
    *_planted(
        "tests/database/deliveries",
        "controlplane/deliveries/settlement.py",
        ("and rows[one.delivery].attempts == one.number", ""),
        ("if reason is not None and endpoint.is_enabled:", "if reason is not None:"),
    ),
    *_planted(
        "tests/database/api/test_permissions.py tests/database/api/test_accounts.py",
        "controlplane/accounts/permissions.py",
        ("if has.rank < needs.rank:", "if has.rank > needs.rank:"),
        (
            'if isinstance(request.auth, Token) and method in getattr(view, "login_only", ()):',
            "if False:",
        ),
    ),
    *_planted(
        "tests/database/api/test_accounts.py tests/database/api/test_permissions.py",
        "controlplane/accounts/authentication.py",
        ("if not token.is_valid(token.now):", "if False:"),
    ),
    *_planted(
        "tests/database/api/test_accounts.py tests/database/api/test_permissions.py",
        "controlplane/accounts/services.py",
        ("if role.rank > limit.rank:", "if False:"),
        (
            "if user.effective_role is Role.ADMIN and not others.exclude(pk=user.pk).exists():",
            "if False:",
        ),
    ),
    *_planted(
        "tests/process/controlplane/test_places.py",
        "controlplane/base/ticks.py",
        ("self.count = max(1, processes // 2)", "self.count = max(1, processes)"),
    ),
    *_planted(
        "tests/database/frontend/test_checkpoint_storage.py tests/database/frontend/test_logs.py",
        "controlplane/base/threads.py",
        ("if not self._free.acquire(timeout=self._patience_s):", "if False:"),
    ),
    *_planted(
        "tests/unit/controlplane tests/database/api/test_problems.py tests/process/controlplane",
        "controlplane/base/limits/addresses.py",
        ("return parsed is not None and any(", "return parsed is not None or any("),
    ),
    *_planted(
        "tests/unit/controlplane tests/database/controlplane/test_login.py",
        "controlplane/base/limits/counters.py",
        ("return self.count > self.count_max", "return self.count > self.count_max + 1"),
    ),
    *_planted(
        "tests/unit/controlplane/test_env.py",
        "controlplane/base/env.py",
        ("merged = {**(parameters or {}), **own}", "merged = {**own, **(parameters or {})}"),
        (
            """return f"{given}{'&' if url.query else '?'}ssl_cert_reqs=required\"""",
            "return given",
        ),
    ),
    *_planted(
        "tests/database/controlplane/test_unusable_database.py",
        "controlplane/base/unusable_database.py",
        ("        connection.close()", "        pass"),
        ("        if is_prepared:", "        if False:"),
        ("if _execute not in connection.execute_wrappers:", "if True:"),
    ),
    *_planted(
        "tests/database/controlplane/test_unusable_database.py",
        "controlplane/base/server_losses.py",
        (
            "if isinstance(error, InterfaceError | UnusableDatabase):",
            "if isinstance(error, InterfaceError):",
        ),
    ),
    *_planted(
        "tests/database/controlplane/test_connections.py",
        "controlplane/settings/base.py",
        ("=read\\\\ committed", "=serializable"),
    ),
    *_planted(
        "tests/database/jobs/test_launcher.py",
        "jobs/drivers/driver_files.py",
        ("while os.path.lexists(directory_of(driver.job_id, number)):", "while False:"),
    ),
    *_planted(
        "tests/unit/frontend/test_formatting.py",
        "controlplane/base/formatting.py",
        ("if 0 < value < 10 and round(value) != value:", "if False:"),
        ("and {len(names) - at_most:,} more", "and {len(names):,} more"),
    ),
    *_planted(
        "tests/database/api/test_pages.py",
        "controlplane/base/rest/pagination.py",
        ("if not 1 <= int(given) <= PAGE_SIZE_MAX:", "if not 1 <= int(given):"),
    ),
    *_planted(
        "tests/unit/frontend tests/database/frontend/test_details.py tests/database/frontend/test_checkpoint_pages.py",
        "frontend/checkpoint/details.py",
        (
            "missing = sorted(expected[uid] - done) if is_known else []",
            "missing = sorted(expected[uid]) if is_known else []",
        ),
        ("if not done and len(missing) > 1:", "if len(missing) > 1:"),
    ),
    *_planted(
        "tests/unit/frontend tests/database/frontend/test_views.py",
        "frontend/job/history.py",
        ("max(ceil(share * len(values)), 1) - 1]", "max(ceil(share * len(values)), 1) - 2]"),
        ("row is longest or row.status == CheckpointStatus.FAILED", "row is longest"),
    ),
    *_planted(
        "tests/unit/frontend tests/database/frontend/test_views.py tests/database/frontend/test_live.py",
        "frontend/graph/state.py",
        (
            "set(range(chain.parallelism)) - self.done - gone)",
            "set(range(chain.parallelism)) - self.done)",
        ),
        ("elif load.back_pressured >= BACK_PRESSURE_SHOWN:", "elif False:"),
    ),
    *_planted(
        "tests/unit/frontend tests/database/frontend/test_savepoints.py",
        "frontend/savepoints/tree.py",
        (
            "if holder is not None and (holder.newest is None or holder.newest <= base):",
            "if holder is not None:",
        ),
    ),
    *_planted(
        "tests/database/frontend/test_listing.py tests/database/frontend/test_views.py",
        "frontend/overview/queries.py",
        ("ended_at__gt=now - FAILED_LATELY", "ended_at__lt=now - FAILED_LATELY"),
        ("rows = rows.filter(urgency__lte=Urgency.WARN)", "pass"),
    ),
    *_planted(
        "tests/database/frontend/test_every_address.py tests/database/frontend/test_views.py",
        "frontend/base/access.py",
        (">= role.rank", "<= role.rank"),
    ),
    *_planted(
        "tests/unit/frontend tests/database/frontend",
        "frontend/base/query_parameters.py",
        ("return number if number <= most else None", "return number"),
    ),
)
