"""A pipeline whose graph cannot be built."""

from weir.datastream import StreamExecutionEnvironment

env = StreamExecutionEnvironment.get_execution_environment()
tariffs = {"day": 3}
env.from_collection([1, 2, 3]).map(lambda n: n * tariffs["day"]).print()
print(tariffs["<night>"])
env.execute("broken")
