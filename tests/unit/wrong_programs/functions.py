"""Functions that a beginner gives to a stream."""

from tests.unit.wrong_programs.harness import Wrong

CASES = [
    Wrong(
        "no function",
        """
env.from_collection([1, 2]).map(None).print()
""",
        "map takes a function or a MapFunction, not None: give it the function itself, f "
        "and not f(...)",
    ),
    Wrong(
        "the result of a function instead of the function",
        """
def double(x):
    return 2 * x
env.from_collection([1, 2]).map(double(3)).print()
""",
        "map takes a function or a MapFunction, not 6 (int): give it the function itself, "
        "not what it returned",
    ),
    Wrong(
        "a lambda of two fields for one record",
        """
env.from_collection([("a", 1)]).map(lambda word, n: word).print()
""",
        "map calls its function with one record, but the lambda takes (word, n); a tuple "
        "comes as one argument, whose fields are record[0], record[1] ...",
    ),
    Wrong(
        "a method without self",
        """
class Parse(MapFunction):
    def map(value):
        return value
env.from_collection(["1"]).map(Parse()).print()
""",
        "map calls its function with one record, but Parse takes none; a method has self "
        "as its first parameter",
    ),
    Wrong(
        "a method of another name",
        """
class Parse(MapFunction):
    def parse(self, value):
        return int(value)
env.from_collection(["1"]).map(Parse()).print()
""",
        "Parse does not define map, which MapFunction leaves to it; it has parse, which is "
        "never called",
    ),
    Wrong(
        "a class instead of an object",
        """
class M(MapFunction):
    def map(self, value):
        return value
env.from_collection([1]).map(M).print()
""",
        "map got the class M instead of an object of it: write map(M())",
    ),
    Wrong(
        "a generator in map",
        """
def words(line):
    for word in line.split():
        yield word
env.from_collection(["to be"]).map(words).print()
""",
        "map takes one value of each call, but words yields: return the value, or use "
        "flat_map, which takes any number of records from each",
    ),
    Wrong(
        "an async function",
        """
async def fetch(x):
    return x
env.from_collection([1]).map(fetch).print()
""",
        "map cannot await fetch: write it with def instead of async def",
    ),
    Wrong(
        "a filter function in map",
        """
class Big(FilterFunction):
    def filter(self, value):
        return value > 1
env.from_collection([1, 2]).map(Big()).print()
""",
        "map takes a function or a MapFunction, but Big is a FilterFunction: call filter with it",
    ),
    Wrong(
        "a lambda in process",
        """
env.from_collection([1]).process(lambda x: [x]).print()
""",
        "process takes a ProcessFunction, not the lambda; a function of one record belongs "
        "in map or flat_map",
    ),
    Wrong(
        "a process function without a key behind key_by",
        """
class Count(ProcessFunction):
    def process_element(self, value, ctx):
        yield value
env.from_collection([1]).key_by(lambda x: x).process(Count()).print()
""",
        "process after key_by takes a KeyedProcessFunction, not an object of Count; derive "
        "Count from KeyedProcessFunction",
    ),
    Wrong(
        "a keyed process function without key_by",
        """
class Count(KeyedProcessFunction):
    def process_element(self, value, ctx):
        yield value
env.from_collection([1]).process(Count()).print()
""",
        "a KeyedProcessFunction needs a key: call key_by before process, or derive from "
        "ProcessFunction",
    ),
    Wrong(
        "process_element without a context",
        """
class Count(KeyedProcessFunction):
    def process_element(self, value):
        yield value
env.from_collection([1]).key_by(lambda x: x).process(Count()).print()
env.execute()
""",
        "Count.process_element is called with a record and its context, but it takes (value)",
    ),
    Wrong(
        "a reduce of one record",
        """
env.from_collection([("a", 1), ("a", 2)]).key_by(lambda r: r[0]).reduce(lambda r: r).print()
""",
        "reduce calls its function with two records, but the lambda takes (r)",
    ),
    Wrong(
        "a tuple returned instead of yielded",
        """
class Pair(ProcessFunction):
    def process_element(self, value, ctx):
        return value, 1
env.from_collection([1]).process(Pair()).print()
env.execute()
""",
        "'Process' (pipeline.py:4) failed on the record 1: process_element returned the "
        "tuple (1, 1), which is one record and no list of them: write yield instead of "
        "return",
    ),
    Wrong(
        "a value returned instead of yielded",
        """
class One(ProcessFunction):
    def process_element(self, value, ctx):
        return value
env.from_collection([1]).process(One()).print()
env.execute()
""",
        "'Process' (pipeline.py:4) failed on the record 1: TypeError: 'int' object is not "
        "iterable. The function has to return a list of records, or None, or yield its "
        "records; for one record of each use map",
    ),
    Wrong(
        "text returned by flat_map",
        """
env.from_collection(["to be"]).flat_map(lambda line: line.upper()).print()
env.execute()
""",
        "'Flat Map' (pipeline.py:1) returned the text 'TO BE' for the record 'to be', and "
        "each of its characters becomes a record; return [text] for one record, or "
        "text.split() for its words",
    ),
    Wrong(
        "a number returned by flat_map",
        """
env.from_collection([1]).flat_map(lambda x: x).print()
env.execute()
""",
        "'Flat Map' (pipeline.py:1) failed on the record 1: TypeError: 'int' object is not "
        "iterable. The function has to return a list of records, or None, or yield its "
        "records; for one record of each use map",
    ),
    Wrong(
        "a flat_map that returns nothing",
        """
def words(line):
    line.split()
env.from_collection(["to be"]).flat_map(words).print()
env.execute()
""",
        "'Flat Map' (pipeline.py:3): its function words returns nothing, so it makes no "
        "record; let it return a list of records, or yield them",
    ),
    Wrong(
        "a flat_map that returns what print returns",
        """
env.from_collection(["to be"]).flat_map(lambda line: print(line)).print()
env.execute()
""",
        "'Flat Map' (pipeline.py:1) made no record of all that it got: its function "
        "returns None; let it return a list of records, or yield them",
    ),
    Wrong(
        "a map that returns nothing",
        """
def double(x):
    x * 2
env.from_collection([1]).map(double).print()
env.execute()
""",
        "'Map' (pipeline.py:3): its function double returns nothing, so every record "
        "becomes None; let it return the new record",
    ),
    Wrong(
        "a filter that returns nothing",
        """
def big(x):
    x > 1
env.from_collection([1, 2]).filter(big).print()
env.execute()
""",
        "'Filter' (pipeline.py:3): its function big returns nothing, so it keeps no "
        "record; let it return True for those that stay",
    ),
    Wrong(
        "a mutable default as state",
        """
def total(x, seen=[]):
    seen.append(x)
    return sum(seen)
env.from_collection([1, 2]).map(total).print()
env.execute()
""",
        "'Map' (pipeline.py:4): the default seen=[] of total is one object for all calls; "
        "what is kept in it is in no checkpoint, and is lost or counted twice after a "
        "restart: use keyed state",
    ),
    Wrong(
        "a lock of the module",
        """
import threading
lock = threading.Lock()
def guarded(x):
    with lock:
        return x
env.from_collection([1]).map(guarded).print()
env.execute()
""",
        "the pipeline cannot be sent to the slots: the function guarded of 'Map' "
        "(pipeline.py:6) uses the variable lock, a _thread.lock, which cannot be sent: "
        "create it in open(), not when the function is created",
    ),
    Wrong(
        "a connection in a field",
        """
import sqlite3
class Lookup(MapFunction):
    def __init__(self):
        self.db = sqlite3.connect(":memory:")
    def map(self, value):
        return self.db.execute("select 1").fetchone()
lookup = Lookup()
env.from_collection([1]).map(lookup).print()
try:
    env.execute()
finally:
    lookup.db.close()
""",
        "the pipeline cannot be sent to the slots: 'Map' (pipeline.py:8) uses the field "
        "self.db, a sqlite3.Connection, which cannot be sent: create it in open(), not "
        "when the function is created",
    ),
    Wrong(
        "a stream inside a function",
        """
other = env.from_collection([2])
env.from_collection([1]).map(lambda x: other.map(lambda y: x + y)).print()
env.execute()
""",
        "the pipeline cannot be sent to the slots: the lambda of 'Map' (pipeline.py:2) "
        "uses the variable other, a DataStream: a function gets records while the job "
        "runs, and can use neither streams nor their environment",
    ),
    Wrong(
        "a field that is missing",
        """
env.from_collection([{"n": "7"}]).map(lambda r: r["m"] + 1).print()
env.execute()
""",
        "'Map' (pipeline.py:1) failed on the record {'n': '7'}: KeyError: 'm'",
    ),
    Wrong(
        "text that is no number",
        """
def parse(line):
    return int(line)
env.from_collection(["1", "x"]).map(parse).print()
env.execute()
""",
        "'Map' (pipeline.py:3) failed on the record 'x': ValueError: invalid literal for "
        "int() with base 10: 'x'",
    ),
    Wrong(
        "a division by zero",
        """
# dead simple
env.from_collection([1, 0]).map(lambda x: 1 / x).print()
env.execute()
""",
        "'Map' (pipeline.py:2) failed on the record 0: ZeroDivisionError: division by zero",
    ),
    Wrong(
        "an accumulator in the wrong place",
        """
class Mean(AggregateFunction):
    def create_accumulator(self):
        return 0, 0
    def add(self, accumulator, value):
        return accumulator[0] + value, accumulator[1] + 1
    def get_result(self, accumulator):
        return accumulator[0] / accumulator[1]
stream = env.from_collection([1]).key_by(lambda x: x)
stream.window(TumblingProcessingTimeWindows.of(Time.seconds(1))).aggregate(Mean()).print()
env.execute()
""",
        "'Window Aggregate' (pipeline.py:9) failed on the record 1: TypeError: 'int' "
        "object is not subscriptable",
    ),
    Wrong(
        "a generator source without an index",
        """
stream = env.from_source(DataGeneratorSource(lambda: 1, 3), WatermarkStrategy.no_watermarks(), "n")
stream.print()
env.execute()
""",
        "DataGeneratorSource takes a function of one index, not one that takes none: "
        "lambda index: ...",
    ),
]
