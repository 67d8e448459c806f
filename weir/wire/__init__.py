"""Messages between driver and control plane on the network: checked, bounded, versioned.

``weir.protocol`` says what the messages are, with the standard library alone, and its fields carry
their bounds (``weir.bounds``). Here msgspec reads and writes them: ``mirrors`` makes a struct for
each message class, which decodes JSON and checks types, bounds and names of fields in one pass;
``batches`` reads and writes what the two resources of the gateway carry.

Versions: the driver's first requests and each answer name the highest that their side speaks, and
both write the lower one (``batches.agreed``). A control plane that does not speak the version of a
request refuses it and names its own; the driver repeats the request in that. Within a version a
field that the reader does not know is refused, so a new field needs a new version.

======= ==========================================================================================
version difference from the one before
======= ==========================================================================================
1       Texts for people have any length. The reader cuts them.
2       Texts for people have at most ``TEXT_LENGTH_MAX`` characters. The writer cuts them.
3       A checkpoint that ended without a manifest is failed, or aborted by a planned end, each with
        reasons of its own. Before, all are aborted, and planned ends are named for what they do.
4       Subtasks count bad records, and the time that their slot waited for a processor.
5       Plans say whether a repeated error ends the job. Acknowledgements say when and where a
        snapshot became unaligned, and the bytes under way at outputs and of each input channel.
6       Subtasks tell the memory of their slot's worker process.
7       Subtasks tell where they work, and how long their host was short of processors;
        acknowledgements, for how long each operator's part was written; batches, the driver's load.
8       Barriers name the completed checkpoint since which changed state alone may be written; the
        control plane asks for looks into subtasks.
9       Workers tell the limit of their memory, and where it comes from.
======= ==========================================================================================
"""
