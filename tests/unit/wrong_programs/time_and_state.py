"""Time, windows and keyed state as a beginner uses them."""

from tests.unit.wrong_programs.harness import Wrong

CASES = [
    Wrong(
        "a timestamp of records without time",
        """
class Late(ProcessFunction):
    def process_element(self, value, ctx):
        yield ctx.timestamp() + 1000
env.from_collection([1]).process(Late()).print()
env.execute()
""",
        "'Process' (pipeline.py:4) failed on the record 1: TypeError: unsupported operand "
        "type(s) for +: 'NoneType' and 'int'. ctx.timestamp() is None, because the records "
        "have no event time; call assign_timestamps_and_watermarks before",
    ),
    Wrong(
        "windows over records without time",
        """
stream = env.from_collection([1]).key_by(lambda x: x)
stream.window(TumblingEventTimeWindows.of(Time.seconds(5))).reduce(lambda a, b: a).print()
env.execute()
""",
        "'Window Reduce' (pipeline.py:2) groups records by event time, but they have none; "
        "call assign_timestamps_and_watermarks before key_by, with a timestamp assigner or "
        "column",
    ),
    Wrong(
        "a length instead of windows",
        """
stream = env.from_collection([1])
stream.key_by(lambda x: x).window(Time.seconds(5)).reduce(lambda a, b: a).print()
""",
        "window takes TumblingEventTimeWindows.of(...) or "
        "TumblingProcessingTimeWindows.of(...), not Time(length_ms=5000)",
    ),
    Wrong(
        "windows without a function",
        """
stream = env.from_collection([1])
stream.key_by(lambda x: x).window(TumblingEventTimeWindows.of(Time.seconds(5))).print()
""",
        "WindowedStream has no print; instead: say first what becomes of each window, with "
        "reduce, aggregate, process or aggregate_batches",
    ),
    Wrong(
        "windows of no length",
        """
TumblingEventTimeWindows.of(Time.seconds(0))
""",
        "a window of 0 ms: its size must be positive",
    ),
    Wrong(
        "a broken number of seconds",
        """
Time.seconds(1.5)
""",
        "a Time is made of a whole number, not of 1.5: write Time.milliseconds(1500)",
    ),
    Wrong(
        "seconds as text",
        """
Duration.of_seconds("5")
""",
        "a Duration is made of a whole number, not of '5'",
    ),
    Wrong(
        "a length as text",
        """
WatermarkStrategy.for_bounded_out_of_orderness("5 seconds")
""",
        "'5 seconds' is not a length of time; give whole milliseconds, such as 1_000 for a "
        "second, or a Duration, a Time or a timedelta",
    ),
    Wrong(
        "a timestamp assigner that fails",
        """
s = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda r, t: r["tz"])
env.from_collection([{"ts": 1}]).map(lambda r: r).assign_timestamps_and_watermarks(s).print()
env.execute()
""",
        "the timestamp assigner of 'Timestamps/Watermarks' (pipeline.py:2) failed on the "
        "record {'ts': 1}: KeyError: 'tz'",
    ),
    Wrong(
        "a timestamp assigner that fails in a source",
        """
s = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda r, t: r["tz"])
env.from_source(CollectionSource([{"ts": 1}]), s, "x").print()
env.execute()
""",
        "the timestamp assigner of 'x' (pipeline.py:2) failed on the record {'ts': 1}: "
        "KeyError: 'tz'",
    ),
    Wrong(
        "timestamps in seconds",
        """
strategy = WatermarkStrategy.for_monotonous_timestamps()
s = strategy.with_timestamp_assigner(lambda r, t: r["ts"] / 1000)
env.from_collection([{"ts": 1500}]).assign_timestamps_and_watermarks(s).print()
env.execute()
""",
        "the timestamp assigner of 'Timestamps/Watermarks' (pipeline.py:3) returned 1.5 "
        "for the record {'ts': 1500}; it must return integer milliseconds that fit into 64 "
        "bits",
    ),
    Wrong(
        "an assigner of one argument",
        """
s = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda r: r["ts"])
env.from_collection([{"ts": 1500}]).assign_timestamps_and_watermarks(s).print()
env.execute()
""",
        "with_timestamp_assigner calls its function with two arguments, (value, "
        "record_timestamp), but the lambda takes (r)",
    ),
    Wrong(
        "a misspelt timestamp column",
        """
s = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_column("time")
env.from_collection([{"ts": 1500}]).assign_timestamps_and_watermarks(s).print()
env.execute()
""",
        "'Timestamps/Watermarks' (pipeline.py:2): the timestamp column 'time' is missing; "
        "the records have ts",
    ),
    Wrong(
        "a column name as strategy",
        """
env.from_collection([1]).assign_timestamps_and_watermarks("ts").print()
""",
        "assign_timestamps_and_watermarks takes a WatermarkStrategy, not 'ts': write "
        "WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(...), say",
    ),
    Wrong(
        "state asked of the function",
        """
class Count(KeyedProcessFunction):
    def process_element(self, value, ctx):
        self.count = self.get_state(ValueStateDescriptor("count", Types.LONG()))
        yield value
env.from_collection([1]).key_by(lambda x: x).process(Count()).print()
env.execute()
""",
        "'Keyed Process' (pipeline.py:5) failed on the record 1: AttributeError: 'Count' "
        "object has no attribute 'get_state'. Call it on the argument of open: def "
        "open(self, context): context.get_state(...)",
    ),
    Wrong(
        "a sum with no value yet",
        """
class Count(KeyedProcessFunction):
    def open(self, ctx):
        self.count = ctx.get_state(ValueStateDescriptor("count", Types.LONG()))
    def process_element(self, value, ctx):
        self.count.update(self.count.value() + 1)
        yield self.count.value()
env.from_collection([1]).key_by(lambda x: x).process(Count()).print()
env.execute()
""",
        "'Keyed Process' (pipeline.py:7) failed on the record 1: TypeError: unsupported "
        "operand type(s) for +: 'NoneType' and 'int'. state.value() is None until the key "
        "has a value; write state.value() or 0, say",
    ),
    Wrong(
        "a Python class as type of state",
        """
class Count(KeyedProcessFunction):
    def open(self, ctx):
        self.count = ctx.get_state(ValueStateDescriptor("count", int))
    def process_element(self, value, ctx):
        yield self.count.value()
env.from_collection([1]).key_by(lambda x: x).process(Count()).print()
env.execute()
""",
        "'Keyed Process' (pipeline.py:6): state 'count' needs a type such as Types.LONG(), "
        "not <class 'int'>",
    ),
    Wrong(
        "text into a state of numbers",
        """
class Count(KeyedProcessFunction):
    def open(self, ctx):
        self.seen = ctx.get_state(ValueStateDescriptor("seen", Types.LONG()))
    def process_element(self, value, ctx):
        self.seen.update("yes")
        yield value
env.from_collection([1]).key_by(lambda x: x).process(Count()).print()
env.execute()
""",
        "'Keyed Process' (pipeline.py:7) failed on the record 1: state 'seen': 'yes' of "
        "type str does not fit LONG",
    ),
    Wrong(
        "a list's method on list state",
        """
class Count(KeyedProcessFunction):
    def open(self, ctx):
        self.seen = ctx.get_list_state(ListStateDescriptor("seen", Types.LONG()))
    def process_element(self, value, ctx):
        self.seen.append(value)
        yield value
env.from_collection([1]).key_by(lambda x: x).process(Count()).print()
env.execute()
""",
        "'Keyed Process' (pipeline.py:7) failed on the record 1: AttributeError: "
        "'ListState' object has no attribute 'append'. It has add, add_all, clear, get, "
        "update",
    ),
    Wrong(
        "state without a key",
        """
class Seen(MapFunction):
    def open(self, ctx):
        self.seen = ctx.get_state(ValueStateDescriptor("seen", Types.LONG()))
    def map(self, value):
        return self.seen.value()
env.from_collection([1]).map(Seen()).print()
env.execute()
""",
        "'Map' (pipeline.py:6) asks for keyed state, but its stream has no key; call "
        "key_by before it",
    ),
    Wrong(
        "a timer at a broken time",
        """
class Count(KeyedProcessFunction):
    def process_element(self, value, ctx):
        ctx.timer_service().register_processing_time_timer(1.5)
        yield value
env.from_collection([1]).key_by(lambda x: x).process(Count()).print()
env.execute()
""",
        "'Keyed Process' (pipeline.py:5) registers a timer at 1.5 (float), which is no "
        "timestamp: it must be an int of milliseconds since the epoch that fits into 64 "
        "bits, e.g. int(seconds * 1000)",
    ),
    Wrong(
        "a timer without a key",
        """
class Remind(ProcessFunction):
    def process_element(self, value, ctx):
        ctx.timer_service().register_processing_time_timer(10)
        yield value
env.from_collection([1]).process(Remind()).print()
env.execute()
""",
        "'Process' (pipeline.py:5) uses a timer on a stream without a key; call key_by "
        "before process and derive from KeyedProcessFunction",
    ),
]
