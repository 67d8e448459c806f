"""Records that do not fit: types, keys and columns."""

from tests.unit.wrong_programs.harness import Wrong

CASES = [
    Wrong(
        "three fields for two in a collection",
        """
env.from_collection([("a", 1, 2)], Types.TUPLE([Types.STRING(), Types.INT()])).print()
env.execute()
""",
        "record 1 of the collection, ('a', 1, 2), does not fit its type: ('a', 1, 2) has 3 "
        "fields instead of the 2 of its type",
    ),
    Wrong(
        "three fields for two",
        """
stream = env.from_collection([("a", 1)])
stream.map(lambda r: r + (2,), Types.TUPLE([Types.STRING(), Types.INT()])).print()
env.execute()
""",
        "'Map' (pipeline.py:2) made the record ('a', 1, 2), which does not fit its "
        "declared type: ('a', 1, 2) has 3 fields instead of the 2 of its type",
    ),
    Wrong(
        "a number for a text",
        """
env.from_collection([1]).map(lambda x: x, Types.STRING()).print()
env.execute()
""",
        "'Map' (pipeline.py:1) made the record 1, which does not fit its declared type: 1 "
        "of type int does not fit STRING",
    ),
    Wrong(
        "a field more than declared",
        """
stream = env.from_collection([{"a": 1}])
stream.map(lambda r: {**r, "b": 2}, Types.ROW_NAMED(["a"], [Types.INT()])).print()
env.execute()
""",
        "'Map' (pipeline.py:2) made the record {'a': 1, 'b': 2}, which does not fit its "
        "declared type: {'a': 1, 'b': 2} has a field b that the type does not have; "
        "declared are a",
    ),
    Wrong(
        "a type without parentheses",
        """
env.from_collection([1], Types.INT).print()
""",
        "type_info is Types.INT, which is no type: write Types.INT(), with parentheses",
    ),
    Wrong(
        "a Python class as type",
        """
env.from_collection([1]).map(str, output_type=str).print()
""",
        "output_type is str, which is no type: write Types.STRING()",
    ),
    Wrong(
        "a list as type",
        """
env.from_collection([1]).map(lambda x: (x, 1), [Types.INT(), Types.INT()]).print()
""",
        "output_type is a list, which is no type: write Types.TUPLE([...]) with these types",
    ),
    Wrong(
        "fields without parentheses",
        """
Types.TUPLE([Types.STRING, Types.INT])
""",
        "STRING is no type; write Types.STRING(), Types.LONG() and so on, with parentheses",
    ),
    Wrong(
        "more names than types",
        """
Types.ROW_NAMED(["a", "b"], [Types.INT()])
""",
        "2 field names (a, b) for 1 field types; give each field a name and a type",
    ),
    Wrong(
        "a class as type of a tag",
        """
OutputTag("late", str)
""",
        "OutputTag('late') takes a type such as Types.STRING(), not <class 'str'>",
    ),
    Wrong(
        "NaN as key",
        """
env.from_collection([float("nan")]).key_by(lambda x: x).reduce(lambda a, b: a).print()
env.execute()
""",
        "key_by (pipeline.py:1) got the key nan from the record nan: NaN cannot be a key: "
        "it equals nothing, not even itself; filter such records out before key_by, or "
        "give them another key, such as None",
    ),
    Wrong(
        "NaN in a key column",
        """
env.from_collection([{"price": float("nan"), "n": 1}]).key_by("price").sum("n").print()
env.execute()
""",
        "key_by (pipeline.py:1) got the key nan of the column price from the record {'n': "
        "1, 'price': nan}: NaN cannot be a key: it equals nothing, not even itself; filter "
        "such records out before key_by, or give them another key, such as None",
    ),
    Wrong(
        "a list as key",
        """
env.from_collection([[1, 2]]).key_by(lambda r: r).reduce(lambda a, b: a).print()
env.execute()
""",
        "key_by (pipeline.py:1) got the key [1, 2] from the record [1, 2]: [1, 2] cannot "
        "be a key: a list has no canonical encoding. Declare key_type in key_by, or return "
        "None, bool, int, float, Decimal, str, bytes, date, time, datetime, UUID, an Enum "
        "member or a tuple of these from the key selector",
    ),
    Wrong(
        "a dict as key",
        """
env.from_collection([{"a": 1}]).key_by(lambda r: r).reduce(lambda a, b: a).print()
env.execute()
""",
        "key_by (pipeline.py:1) got the key {'a': 1} from the record {'a': 1}: {'a': 1} "
        "cannot be a key: a dict has no canonical encoding. Declare key_type in key_by, or "
        "return None, bool, int, float, Decimal, str, bytes, date, time, datetime, UUID, "
        "an Enum member or a tuple of these from the key selector",
    ),
    Wrong(
        "a column that changes its type",
        """
env.from_collection([{"a": 1}, {"a": "x"}]).sink_to(ParquetSink(directory))
env.execute()
""",
        "'ParquetSink' (pipeline.py:1) needs columns: the field 'a' of records holds int "
        "and str: 'x' is of str, and those before it are of int; declare output_type on "
        "the operator that makes them, e.g. output_type=Types.ROW_NAMED([...], [...])",
    ),
    Wrong(
        "a column that changes its name",
        """
env.from_collection([{"a": 1}, {"b": 2}]).sink_to(ParquetSink(directory))
env.execute()
""",
        "'ParquetSink' (pipeline.py:1) needs columns: the record {'b': 2} has the fields "
        "b, but those before it have a; declare output_type on the operator that makes "
        "them, e.g. output_type=Types.ROW_NAMED([...], [...]) (fields that a dict leaves "
        "out are null)",
    ),
    Wrong(
        "tuples into a Parquet sink",
        """
env.from_collection([("a", 1)]).sink_to(ParquetSink(directory))
env.execute()
""",
        "'ParquetSink' (pipeline.py:1) needs columns: the record ('a', 1) of type tuple, "
        "which has no field names, cannot become columns; declare output_type on the "
        "operator that makes them, e.g. output_type=Types.ROW_NAMED([...], [...])",
    ),
    Wrong(
        "a file as directory of a sink",
        """
env.from_collection([{"a": 1}]).sink_to(ParquetSink(f"{directory}/notes.txt"))
""",
        "DIRECTORY/notes.txt is a file; ParquetSink writes a directory of files: give it "
        "the path of one, which need not exist",
    ),
    Wrong(
        "an aggregate that there is not",
        """
stream = env.from_collection([{"amount": 1, "k": 2}])
stream.key_by("k").aggregate_batches(total=("amount", "median")).print()
""",
        "total: no aggregate 'median'; there are sum, count, min, max, mean",
    ),
    Wrong(
        "an aggregate of a misspelt column",
        """
stream = env.from_collection([{"amount": 1, "k": 2}])
stream.key_by("k").aggregate_batches(total=("amout", "sum")).print()
env.execute()
""",
        "'Aggregate: combine' (pipeline.py:2): an aggregate names the column 'amout', "
        "which the records do not have; they have amount, k",
    ),
    Wrong(
        "an aggregate without key columns",
        """
stream = env.from_collection([{"amount": 1, "k": 2}])
stream.key_by(lambda r: r["k"]).aggregate_batches(total=("amount", "sum")).print()
""",
        "aggregates over columns need key columns: key_by('name') or key_by(['a', 'b'])",
    ),
    Wrong(
        "a sum of text",
        """
stream = env.from_collection([{"amount": "1", "k": 2}])
stream.key_by("k").aggregate_batches(total=("amount", "sum")).print()
env.execute()
""",
        "'Aggregate: combine' (pipeline.py:2): the column 'amount' is string, which cannot "
        "be aggregated in columns; cast it to float64 or int64 before, or reduce per record",
    ),
    Wrong(
        "a batch with fewer rows",
        """
import pyarrow as pa
env.from_collection([{"a": 1}, {"a": 2}]).map_batches(lambda batch: batch.slice(1)).print()
env.execute()
""",
        "'Map Batches' (pipeline.py:2) made 1 rows of 2; a function that changes the "
        "number of rows belongs in filter_batches or flat_map_batches",
    ),
    Wrong(
        "a list instead of a batch",
        """
env.from_collection([{"a": 1}, {"a": 2}]).map_batches(lambda batch: batch.to_pylist()).print()
env.execute()
""",
        "'Map Batches' (pipeline.py:1) returned a list; map_batches must make a "
        "pyarrow.RecordBatch, e.g. pa.RecordBatch.from_pydict({...})",
    ),
    Wrong(
        "a column that is missing",
        """
env.from_collection([{"a": 1}]).map_batches(lambda batch: batch, columns=["b"]).print()
env.execute()
""",
        "'Map Batches' (pipeline.py:1) names the column b, which the records do not have; "
        "they have a",
    ),
    Wrong(
        "numbers as columns",
        """
env.from_collection([1, 2]).map_batches(lambda batch: batch).print()
env.execute()
""",
        "'Map Batches' (pipeline.py:1) needs columns: the record 1 of type int, which has "
        "no field names, cannot become columns; declare output_type on the operator that "
        "makes them, e.g. output_type=Types.ROW_NAMED([...], [...])",
    ),
    Wrong(
        "an expression on a missing column",
        """
import pyarrow.compute as pc
env.from_collection([{"a": 1}]).filter(pc.field("b") > 1).print()
env.execute()
""",
        "'Filter' (pipeline.py:2) failed on a batch of 1 rows (a): the expression (b > 1) "
        "names a column that the records do not have; they have a",
    ),
    Wrong(
        "objects that cannot leave their process",
        """
class Event:
    def __init__(self, n):
        self.n = n
events = env.from_collection([1]).map(Event).key_by(lambda e: e.n).map(lambda e: e)
print(list(events.execute_and_collect()))
""",
        "'Collect' (pipeline.py:5): a record holds a __main__.Event, which cannot leave "
        "its process as data; emit plain values, declare output_type on the operator that "
        "makes it, or allow pickles with --allow-pickled-state (weir.state.allow-pickled)",
    ),
]
