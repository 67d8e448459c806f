"""Streams, sources and sinks that a beginner puts together."""

from tests.unit.wrong_programs.harness import Wrong

CASES = [
    Wrong(
        "reduce without key_by",
        """
env.from_collection([("a", 1)]).reduce(lambda a, b: a).print()
""",
        "DataStream has no reduce; instead: call key_by before it, since it works per key: "
        "stream.key_by(...).reduce(...)",
    ),
    Wrong(
        "sum without key_by",
        """
env.from_collection([("a", 1)]).sum(1).print()
""",
        "DataStream has no sum; instead: call key_by before it, since it works per key: "
        "stream.key_by(...).sum(...)",
    ),
    Wrong(
        "window without key_by",
        """
env.from_collection([1]).window(TumblingEventTimeWindows.of(Time.seconds(5)))
""",
        "DataStream has no window; instead: call key_by before it, since it works per key: "
        "stream.key_by(...).window(...)",
    ),
    Wrong(
        "a name as in Java",
        """
env.from_collection([1]).keyBy(lambda x: x).print()
""",
        "DataStream has no keyBy; did you mean key_by?",
    ),
    Wrong(
        "a method of a sink",
        """
env.from_collection([1]).print().map(lambda x: x)
""",
        "DataStreamSink has no map; instead: keep the stream in a variable, and call its methods "
        "before print or sink_to: nothing follows a sink",
    ),
    Wrong(
        "a key by position",
        """
env.from_collection([("a", 1)]).key_by(0).sum(1).print()
""",
        "key_by cannot use 0; give it a function, a KeySelector, a column name or a list "
        "of column names; for a field by its position write key_by(lambda record: "
        "record[0])",
    ),
    Wrong(
        "a field name on tuples",
        """
env.from_collection([("a", 1)]).key_by("word").sum(1).print()
env.execute()
""",
        "key_by (pipeline.py:1) names the field 'word', which the record ('a', 1) does not "
        "have; give key_by a function, such as lambda record: record[0], or records with "
        "named fields",
    ),
    Wrong(
        "a misspelt column",
        """
env.from_collection([{"word": "a", "n": 1}]).key_by("wrod").sum("n").print()
env.execute()
""",
        "key_by (pipeline.py:1) names the column wrod, which the records do not have; they "
        "have word, n",
    ),
    Wrong(
        "a sum over None",
        """
env.from_collection([("a", 1), ("a", None)]).key_by(lambda r: r[0]).sum(1).print()
env.execute()
""",
        "'Sum' (pipeline.py:1) failed on the record ('a', None): TypeError: unsupported "
        "operand type(s) for +: 'int' and 'NoneType'",
    ),
    Wrong(
        "a parallelism as text",
        """
env.from_collection([1]).map(lambda x: x).set_parallelism("2").print()
""",
        "set_parallelism takes a whole number, such as 2, not '2' (str)",
    ),
    Wrong(
        "no parallelism",
        """
env.set_parallelism(0)
""",
        "parallelism is 0; it must be at least 1",
    ),
    Wrong(
        "a broadcast of state",
        """
env.from_collection([1]).broadcast(MapStateDescriptor("rules", Types.STRING(), Types.STRING()))
""",
        "broadcast takes no state descriptor: Weir has no broadcast state. broadcast() "
        "sends every record to all subtasks; a function that needs a small table can load "
        "it in open()",
    ),
    Wrong(
        "a union of a list",
        """
one, two = env.from_collection([1]), env.from_collection([2])
one.union([two]).print()
""",
        "union takes streams, one by one, not [<DataStream of 'Collection Source' "
        "(pipeline.py:1)>]: write union(*streams)",
    ),
    Wrong(
        "a side output by name",
        """
env.from_collection([1]).map(lambda x: x).get_side_output("late").print()
""",
        "get_side_output takes an OutputTag, not 'late' (str): write OutputTag('late'), "
        "the same one that the function yields to",
    ),
    Wrong(
        "a loop over a stream",
        """
for word in env.from_collection(["a"]):
    print(word)
""",
        "a stream cannot be looped over: it has no records until the job runs. Call "
        "stream.execute_and_collect() and loop over that, or map a function over the stream",
    ),
    Wrong(
        "a path instead of a sink",
        """
env.from_collection(["a"]).sink_to("out.parquet")
""",
        "'out.parquet' is not a sink: for Parquet files write "
        "sink_to(ParquetSink('out.parquet')); use one of weir.datastream.connectors or an "
        "object with create_operator_factory()",
    ),
    Wrong(
        "a class of sinks",
        """
env.from_collection(["a"]).sink_to(ParquetSink)
""",
        "the class ParquetSink is not a sink: write sink_to(ParquetSink(...)); use one of "
        "weir.datastream.connectors or an object with create_operator_factory()",
    ),
    Wrong(
        "a number as name",
        """
env.from_collection([1]).map(lambda x: x).name(5).print()
""",
        "name takes a text, such as name('counts'), not 5 (int)",
    ),
    Wrong(
        "a uid twice",
        """
env.from_collection([1]).map(lambda x: x).uid("a").map(lambda x: x).uid("a").print()
env.execute()
""",
        "uid used twice: a; give each operator its own",
    ),
    Wrong(
        "a uid behind key_by",
        """
env.from_collection([("a", 1)]).key_by(lambda r: r[0]).uid("by-word").sum(1).print()
""",
        "uid() belongs to an operator, and this stream comes from none (it was made by "
        "key_by, union, get_side_output or a partitioning); call it right after the "
        "operator",
    ),
    Wrong(
        "nothing to run",
        """
env.execute()
""",
        "the pipeline has no source; begin with env.from_collection(...) or env.from_source(...)",
    ),
    Wrong(
        "no sink",
        """
env.from_collection([1, 2]).map(lambda x: x + 1)
env.execute()
""",
        "the pipeline has no sink, so its results go nowhere: end a stream with print() or "
        "sink_to(...)",
    ),
    Wrong(
        "a stream that nothing reads",
        """
numbers = env.from_collection([1, 2])
numbers.map(lambda x: x + 1)
numbers.print()
env.execute()
""",
        "'Map' (pipeline.py:2) is not run, for nothing reads its records; print() or sink_to(...) "
        "would, and an operator's method returns a new stream, stream = stream.map(...)",
    ),
    Wrong(
        "a side output that nothing feeds",
        """
late = OutputTag("late")
class Split(ProcessFunction):
    def process_element(self, value, ctx):
        yield late, value
env.from_collection([1]).process(Split()).get_side_output(OutputTag("lat")).print()
env.execute()
""",
        "'Process' (pipeline.py:5): its side output 'lat' is read, and its function never "
        "yields to a tag of that name; it knows 'late'",
    ),
    Wrong(
        "a partitioner beyond the last subtask",
        """
stream = env.from_collection([1, 2])
stream.partition_custom(lambda key, n: key, lambda x: x).map(lambda x: x).print()
env.execute()
""",
        "partition_custom (pipeline.py:2) sends the record 1 to the subtask 1; it must "
        "return an int from 0 to 0",
    ),
    Wrong(
        "a limit as text",
        """
env.from_collection([1]).execute_and_collect(limit="5")
""",
        "execute_and_collect(limit=...) takes a whole number, such as 2, not '5' (str)",
    ),
    Wrong(
        "a path instead of a source",
        """
env.from_source("data.parquet", WatermarkStrategy.no_watermarks(), "data").print()
""",
        "'data.parquet' is not a source: for Parquet files write "
        "ParquetSource('data.parquet'); use one of weir.datastream.connectors, "
        "env.from_collection, or an object with create_operator_factory(parallelism)",
    ),
    Wrong(
        "a data frame",
        """
import pandas
env.from_collection(pandas.DataFrame({"a": [1]})).print()
""",
        "from_collection takes a list of records, not a DataFrame: give it "
        "frame.to_dict('records') of a pandas DataFrame, or [row.asDict() for row in "
        "frame.collect()] of a Spark one",
    ),
    Wrong(
        "a text instead of a list",
        """
env.from_collection("to be or not to be").flat_map(str.split).print()
""",
        "from_collection got the text 'to be or not to be', whose elements are single "
        "characters: put it in a list, from_collection([text]), or split it",
    ),
    Wrong(
        "a dict instead of a list",
        """
env.from_collection({"a": 1}).print()
""",
        "from_collection got a dict, whose elements are its keys: give it list(d.items()) "
        "for pairs, or [d] for one record",
    ),
    Wrong(
        "a number instead of a list",
        """
env.from_collection(5).print()
""",
        "from_collection takes a list of records, not 5 (int)",
    ),
    Wrong(
        "a number sequence of texts",
        """
env.from_source(NumberSequenceSource("1", "10"), WatermarkStrategy.no_watermarks(), "n").print()
env.execute()
""",
        "a number sequence has whole numbers, not '1' and '10'",
    ),
]
